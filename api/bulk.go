package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline"
)

// How many bulk acts one process has at a time, and remembers.
const (
	mostRunning    = 8
	mostRemembered = 100
)

// recheckEvery is how often a bulk act asks whether its token still lives.
const recheckEvery = 2 * time.Second

// The states of a bulk act.
const (
	bulkRunning   = "running"
	bulkDone      = "done"
	bulkCancelled = "cancelled"
	bulkFailed    = "failed"
)

// BulkJob is a bulk act as it stands. It lives in the process that was asked for it; what it gave is in the
// audit, and stays given when that process ends.
type BulkJob struct {
	ID    uuid.UUID `json:"id"`
	Act   string    `json:"act" enum:"retry,resolve"`
	Token string    `json:"token" doc:"The name of the token that asked for it."`
	State string    `json:"state" enum:"running,done,cancelled,failed"`
	// Ended is how many of Matched have been gone through.
	Ended     int64              `json:"ended"`
	Report    keyline.BulkReport `json:"report"`
	StartedAt time.Time          `json:"started_at"`
	EndedAt   *time.Time         `json:"ended_at"`
	Problem   string             `json:"problem,omitempty" doc:"Why it failed."`
}

// job is a bulk act with what it takes to end it.
type job struct {
	BulkJob
	tenant *string
	cancel context.CancelFunc
	asked  bool // to be cancelled
}

// jobs are the bulk acts of this process.
type jobs struct {
	mu   sync.Mutex
	list []*job // the oldest first
}

func newJobs() *jobs { return &jobs{} }

// add takes a job in, unless there are too many that run.
func (j *jobs) add(n *job) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	running := 0
	for _, o := range j.list {
		if o.State == bulkRunning {
			running++
		}
	}
	if running >= mostRunning {
		return false
	}
	if len(j.list) >= mostRemembered {
		i := slices.IndexFunc(j.list, func(o *job) bool { return o.State != bulkRunning })
		j.list = slices.Delete(j.list, i, i+1)
	}
	j.list = append(j.list, n)
	return true
}

// of are the jobs that a token sees, as they stand, the newest first.
func (j *jobs) of(t keyline.Token) []BulkJob {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := []BulkJob{}
	for _, o := range slices.Backward(j.list) {
		if sees(t, o.tenant) {
			list = append(list, o.snapshot())
		}
	}
	return list
}

// with runs f on a job that a token sees, and returns how it then stands.
func (j *jobs) with(t keyline.Token, id uuid.UUID, f func(*job)) (BulkJob, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, o := range j.list {
		if o.ID == id && sees(t, o.tenant) {
			f(o)
			return o.snapshot(), nil
		}
	}
	return BulkJob{}, problem(http.StatusNotFound, keyline.CodeNotFound, "there is no such bulk act in this process")
}

// sees reports whether a token sees what is a tenant's (nil: what is all tenants').
func sees(t keyline.Token, tenant *string) bool {
	return t.Tenant == nil || tenant != nil && *tenant == *t.Tenant
}

func (j *job) snapshot() BulkJob {
	s := j.BulkJob
	s.Report.Failures = slices.Clone(s.Report.Failures)
	return s
}

// bulkBody is what a bulk act takes.
type bulkBody struct {
	WithReason
	Filter struct {
		Tenant   *string    `json:"tenant,omitempty" maxLength:"512"`
		Record   *string    `json:"record,omitempty" maxLength:"512"`
		Consumer string     `json:"consumer,omitempty" maxLength:"300"`
		Code     string     `json:"code,omitempty" maxLength:"300"`
		Type     string     `json:"type,omitempty" maxLength:"300"`
		Since    *time.Time `json:"since,omitempty"`
		Until    *time.Time `json:"until,omitempty"`
	} `json:"filter" doc:"Which open dead letters; {} takes all of them."`
	DryRun    bool   `json:"dry_run,omitempty" doc:"Count, and change nothing."`
	Confirm   *int64 `json:"confirm,omitempty" doc:"How many the dry run counted. Required unless it is one; 409 where it is another number by now."`
	PerSecond int    `json:"per_second,omitempty" minimum:"0" maximum:"10000" doc:"The most per second; 0: as fast as they are applied."`
}

func (b *bulkBody) filter() keyline.DeadLetterFilter {
	f := keyline.DeadLetterFilter{Tenant: b.Filter.Tenant, Record: b.Filter.Record, Consumer: b.Filter.Consumer, Code: b.Filter.Code, Type: b.Filter.Type}
	if b.Filter.Since != nil {
		f.Since = *b.Filter.Since
	}
	if b.Filter.Until != nil {
		f.Until = *b.Filter.Until
	}
	return f
}

// bulkAnswer is a dry run's count or a job that has begun.
type bulkAnswer struct {
	Status int
	// Location is relative, since the API may be mounted under a prefix that it does not know.
	Location string `header:"Location" doc:"Where the bulk act is, relative to this request's address."`
	Body     struct {
		Matched int64    `json:"matched"`
		Job     *BulkJob `json:"job,omitempty" doc:"What has begun; left out by a dry run."`
	}
}

// bulkAct is a bulk act of an Operator.
type bulkAct func(keyline.Operator, context.Context, keyline.DeadLetterFilter, string, keyline.BulkOptions) (keyline.BulkReport, error)

// JobParam names a bulk act.
type JobParam struct {
	ID uuid.UUID `path:"id" format:"uuid" doc:"The bulk act's id."`
}

func (h *Handler) registerBulk() {
	const tag = "bulk"
	for verb, act := range map[string]bulkAct{"retry": keyline.Operator.RetryDeadLetters, "resolve": keyline.Operator.ResolveDeadLetters} {
		add(h, operation{
			id: verb + "DeadLetters", method: http.MethodPost, path: "/v1/dead-letters/" + verb, tag: tag, role: keyline.RoleOperator, scope: scopeRecords,
			summary:  map[string]string{"retry": "Deliver all dead letters again that a filter takes", "resolve": "Give all dead letters up that a filter takes"}[verb],
			detail:   "First with dry_run, which counts; then with that number as confirm. 202 names the bulk act, to be looked at and cancelled.",
			accepted: true,
		}, func(ctx context.Context, s *session, in *struct{ Body bulkBody }) (*bulkAnswer, error) {
			return h.bulk(ctx, s, verb, act, &in.Body)
		})
	}
	whole(h, operation{
		id: "listBulk", method: http.MethodGet, path: "/v1/bulk", tag: tag, role: keyline.RoleOperator, scope: scopeRecords,
		summary: "The bulk acts of this process, the newest first",
	}, func(_ context.Context, s *session, _ *none) ([]BulkJob, error) { return h.jobs.of(s.token), nil })
	add(h, operation{
		id: "getBulk", method: http.MethodGet, path: "/v1/bulk/{id}", tag: tag, role: keyline.RoleOperator, scope: scopeRecords,
		summary: "How far a bulk act is, and what became of it",
	}, func(_ context.Context, s *session, in *JobParam) (*answer[BulkJob], error) {
		return answered(h.jobs.with(s.token, in.ID, func(*job) {}))
	})
	add(h, operation{
		id: "cancelBulk", method: http.MethodPost, path: "/v1/bulk/{id}/cancel", tag: tag, role: keyline.RoleOperator, scope: scopeRecords,
		summary: "Stop a bulk act between two items", detail: "What was given stays given. One that has ended stays as it ended.",
	}, func(_ context.Context, s *session, in *struct {
		JobParam
		Body none
	}) (*answer[BulkJob], error) {
		return answered(h.jobs.with(s.token, in.ID, func(j *job) {
			j.asked = true
			j.cancel()
		}))
	})
}

// bulk counts, and begins where the count was confirmed.
//
//nolint:contextcheck // what it begins outlives the request that asked for it
func (h *Handler) bulk(ctx context.Context, s *session, verb string, act bulkAct, b *bulkBody) (*bulkAnswer, error) {
	count, err := act(s.Operator, ctx, b.filter(), b.Reason, keyline.BulkOptions{DryRun: true})
	if err != nil {
		return nil, err
	}
	out := &bulkAnswer{Status: http.StatusOK}
	out.Body.Matched = count.Matched
	switch {
	case b.DryRun:
		return out, nil
	case count.Matched == 0:
		return nil, problem(http.StatusConflict, keyline.CodeNothingToDo, "no open dead letter matches")
	case b.Confirm == nil || *b.Confirm != count.Matched:
		return nil, problem(http.StatusConflict, codeNotConfirmed, fmt.Sprintf("this is about %d dead letters: say so in confirm", count.Matched))
	}
	running, cancel := context.WithCancel(h.closing)
	j := &job{tenant: s.token.Tenant, cancel: cancel, BulkJob: BulkJob{ID: uuid.New(), Act: verb, Token: s.token.Name, State: bulkRunning,
		Report: count, StartedAt: h.clock.Now().UTC()}}
	j.Report.DryRun = false
	upto := count.Upto // what dies from here on was not confirmed
	began := j.snapshot()
	if !h.jobs.add(j) {
		cancel()
		return nil, problem(http.StatusTooManyRequests, codeTooMany, "enough bulk acts run here: wait for one, or cancel it")
	}
	if !h.begin(func() { h.run(running, s, act, b, upto, j) }) {
		cancel()
		return nil, problem(http.StatusServiceUnavailable, keyline.CodeUnavailable, "this server is about to end")
	}
	out.Status, out.Location, out.Body.Job = http.StatusAccepted, "../bulk/"+j.ID.String(), &began
	return out, nil
}

// run carries a bulk act out, as long as its token lives.
func (h *Handler) run(ctx context.Context, s *session, act bulkAct, b *bulkBody, upto int64, j *job) {
	defer j.cancel()
	var watching sync.WaitGroup
	watched, unwatch := context.WithCancel(ctx)
	watching.Go(func() { h.endWithToken(watched, s, j.cancel) })
	report, err := act(s.Operator, ctx, b.filter(), b.Reason, keyline.BulkOptions{Upto: upto, PerSecond: b.PerSecond, Progress: func(item keyline.BulkItem, _ int64) {
		h.jobs.mu.Lock()
		defer h.jobs.mu.Unlock()
		j.count(item)
	}})
	unwatch()
	watching.Wait()
	h.jobs.mu.Lock()
	defer h.jobs.mu.Unlock()
	now := h.clock.Now().UTC()
	j.Report, j.EndedAt = report, &now
	switch {
	case err == nil:
		j.State = bulkDone
	case j.asked:
		j.State = bulkCancelled
	case ctx.Err() != nil:
		j.State, j.Problem = bulkCancelled, "its token ended, or this process did"
	default:
		p := asProblem(err)
		j.State, j.Problem = bulkFailed, p.Error()
		h.cfg.Logger.WarnContext(ctx, "a bulk act failed", "id", j.ID, "error", err)
	}
}

// count takes what became of one item into the report that is shown meanwhile.
func (j *job) count(item keyline.BulkItem) {
	j.Ended++
	switch item.Code {
	case "":
		j.Report.Applied++
	case keyline.CodeNothingToDo:
		j.Report.Nothing++
	default:
		j.Report.Failed++
		if len(j.Report.Failures) < mostRemembered {
			j.Report.Failures = append(j.Report.Failures, item)
		}
	}
}

// endWithToken ends what a token has begun once nobody could come in with it any more.
func (h *Handler) endWithToken(ctx context.Context, s *session, end func()) {
	ticker := h.clock.NewTicker(recheckEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		if !h.lives(ctx, s) {
			end()
			return
		}
	}
}

// lives reports whether a session's token still lives, and is what it was; a database that does not answer decides nothing.
func (h *Handler) lives(ctx context.Context, s *session) bool {
	_, _, err := h.gate.Open(ctx, s.secret)
	return !errors.Is(err, &keyline.Error{Code: keyline.CodeUnauthenticated})
}
