package api

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/sse"

	"github.com/keylinehq/keyline"
)

// What a stream of changes tells. Each is a hint to look again and never a record: what
// happens between two looks is told once, and who was away lists anew.
type (
	// Alive says that the stream goes on; it comes first, and after every quiet quarter of a minute.
	Alive struct {
		At time.Time `json:"at"`
	}
	// DeadLettersChanged are dead letters that are new or stand differently.
	DeadLettersChanged struct {
		Items []keyline.DeadLetter `json:"items" nullable:"false"`
		// More is true where there may be others: list them.
		More bool `json:"more" doc:"True where there may be others: list them."`
	}
	// AuditChanged are lines of the audit that are new or whose command was applied.
	AuditChanged struct {
		Items []keyline.AuditEntry `json:"items" nullable:"false"`
		More  bool                 `json:"more" doc:"True where there may be others: list them."`
	}
	// ConsumersChanged are consumers that fare differently. One tenant's token is not told.
	ConsumersChanged struct {
		Items []keyline.ConsumerHealth `json:"items" nullable:"false"`
	}
	// WorkersChanged are all workers, told where one has come, gone or been asked to drain. One tenant's token is not told.
	WorkersChanged struct {
		Items []keyline.WorkerView `json:"items" nullable:"false"`
	}
)

// changesPage is how many of the newest of a list one look compares.
const changesPage = 100

// aliveEvery is how long a stream is quiet at most, so that no proxy takes it for dead.
const aliveEvery = 15 * time.Second

func (h *Handler) registerChanges() {
	op := h.describe(operation{
		id: "changes", method: http.MethodGet, path: "/v1/changes", tag: "changes", role: keyline.RoleViewer, scope: scopeRecords,
		summary: "A stream of changes, as Server-Sent Events",
		detail: "Each event is a hint to look again. A token sees in it what it would find in the lists: one tenant's token is told of that tenant's " +
			"dead letters and audit alone. It ends when the token does. 429 where too many are open.",
		middlewares: huma.Middlewares{h.streamSlot},
	})
	sse.Register(h.api, op, map[string]any{
		"alive": Alive{}, "dead_letters": DeadLettersChanged{}, "audit": AuditChanged{}, "consumers": ConsumersChanged{}, "workers": WorkersChanged{},
	}, func(ctx context.Context, _ *none, send sse.Sender) { h.stream(ctx, send) })
}

// streamSlot lets so many streams in and no more.
func (h *Handler) streamSlot(ctx huma.Context, next func(huma.Context)) {
	// A HEAD is answered as a GET is, by a ServeMux: there is nothing to tell to who reads nothing, and the connection would wait.
	if ctx.Method() == http.MethodHead {
		ctx.SetHeader("Content-Type", "text/event-stream")
		ctx.SetStatus(http.StatusOK)
		return
	}
	select {
	case h.streams <- struct{}{}:
		defer func() { <-h.streams }()
		next(ctx)
	default:
		p := problem(http.StatusTooManyRequests, codeTooMany, "enough streams are open here")
		p.retryAfter = int(aliveEvery / time.Second)
		h.refuse(ctx, p)
	}
}

// stream tells of changes until the client, the token or this handler ends.
func (h *Handler) stream(ctx context.Context, send sse.Sender) {
	s := sessionOf(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.closing, cancel)() //nolint:contextcheck // whichever of the two ends first
	ticker := h.clock.NewTicker(h.cfg.ChangesEvery)
	defer ticker.Stop()
	l := look{session: s}
	var told time.Duration
	for first := true; ; first = false {
		// What it told last is no reason to let somebody in whose token has ended.
		if !first && !h.lives(ctx, s) {
			return
		}
		changes, err := l.again(ctx)
		if err != nil && ctx.Err() == nil {
			h.cfg.Logger.WarnContext(ctx, "a look for changes failed", "error", err)
		}
		if now := h.clock.Mono(); first || now-told >= aliveEvery {
			changes = append([]any{Alive{h.clock.Now().UTC()}}, changes...)
		}
		for _, c := range changes {
			if send.Data(c) != nil {
				return
			}
			told = h.clock.Mono()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// look is what a stream has seen. It asks the session's Operator, so that it sees what that sees.
type look struct {
	session *session
	dead    map[int64]keyline.DeadLetter
	audit   map[int64]keyline.AuditEntry
	health  map[string]keyline.ConsumerHealth
	workers []keyline.WorkerView
}

// again looks once more and returns what has changed; the first look only remembers.
func (l *look) again(ctx context.Context) (changes []any, err error) {
	dead, err := l.session.DeadLetters(ctx, keyline.DeadLetterFilter{Limit: changesPage})
	if err != nil {
		return nil, err
	}
	items, more := difference(&l.dead, dead, func(d keyline.DeadLetter) int64 { return d.ID })
	if len(items) > 0 {
		changes = append(changes, DeadLettersChanged{items, more})
	}
	audit, err := l.session.Audit(ctx, keyline.AuditFilter{Limit: changesPage})
	if err != nil {
		return changes, err
	}
	lines, more := difference(&l.audit, audit, func(e keyline.AuditEntry) int64 { return e.ID })
	if len(lines) > 0 {
		changes = append(changes, AuditChanged{lines, more})
	}
	if l.session.token.Tenant != nil {
		return changes, nil
	}
	health, err := l.session.ConsumerHealth(ctx)
	if err != nil {
		return changes, err
	}
	// That it was counted once more is no change.
	fares, _ := difference(&l.health, health, func(c keyline.ConsumerHealth) string { return c.Name }, func(c *keyline.ConsumerHealth) {
		c.CountedAt, c.LastSeenAt = nil, nil
	})
	if len(fares) > 0 {
		changes = append(changes, ConsumersChanged{fares})
	}
	workers, err := l.session.Workers(ctx)
	if err != nil {
		return changes, err
	}
	if first := l.workers == nil; !first && !slices.EqualFunc(l.workers, workers, sameWorker) {
		changes = append(changes, WorkersChanged{orEmpty(workers)})
	}
	l.workers = orEmpty(workers)
	return changes, nil
}

func sameWorker(x, y keyline.WorkerView) bool {
	return x.ID == y.ID && x.Status == y.Status && (x.DrainAt == nil) == (y.DrainAt == nil)
}

// difference returns what of a list was not there before, or was otherwise, and remembers the list. more is
// true where the list is a full page and nothing that was there before is there now, so that others may have come and gone by, or
// something in it is otherwise, so that what is older than the page may be too. ignore takes out what is no difference.
func difference[K comparable, V any](seen *map[K]V, list []V, key func(V) K, ignore ...func(*V)) (changed []V, more bool) {
	first, now := *seen == nil, make(map[K]V, len(list))
	full, overlaps, otherwise := len(list) == changesPage, false, false
	for _, v := range list {
		same := v
		for _, f := range ignore {
			f(&same)
		}
		k := key(v)
		now[k] = same
		old, was := (*seen)[k]
		overlaps = overlaps || was
		differs := was && !reflect.DeepEqual(old, same)
		otherwise = otherwise || differs
		if !first && (!was || differs) {
			changed = append(changed, v)
		}
	}
	*seen = now
	return changed, full && (!overlaps || otherwise)
}
