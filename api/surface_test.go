package api_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/api"
)

// surface is one operation in the test: what to ask, of which tenant's things.
type surface struct {
	id string
	// path fills the path and adds the query, body is the body; of a tenant's things, for operations about records.
	path func(r *rig, tenant string) string
	body func(r *rig, tenant string) string
	// of another tenant: 404 where it is about one thing, else 0: a list, which has nothing of others.
	foreign int
	// want is the status of what goes well; 0 means 200.
	want int
	// before has to be so.
	before func(r *rig)
	// noReason is true where nothing is changed.
	noReason bool
}

func fixed(s string) func(*rig, string) string { return func(*rig, string) string { return s } }

func named(format string) func(*rig, string) string {
	return func(_ *rig, tenant string) string { return fmt.Sprintf(format, url.QueryEscape(tenant)) }
}

func withDead(format string) func(*rig, string) string {
	return func(r *rig, tenant string) string { return fmt.Sprintf(format, r.dead[tenant]) }
}

func withLetter(format string) func(*rig, string) string {
	return func(r *rig, tenant string) string { return fmt.Sprintf(format, r.letters[tenant]) }
}

func openAgain(r *rig) {
	r.Helper()
	r.await("it died again", "select count(*) = 3 from keyline.dead_letters where status = 'open'")
}

var why = fixed(because(""))

// surfaces are all operations, in an order in which each finds what it needs.
var surfaces = []surface{
	{id: "whoami", path: fixed("/v1/whoami")},
	{id: "overview", path: fixed("/v1/overview")},
	{id: "health", path: fixed("/v1/health")},
	{id: "stuck", path: fixed("/v1/stuck?limit=5")},
	{id: "verify", path: fixed("/v1/verify"), body: fixed("{}"), noReason: true},
	{id: "doctor", path: fixed("/v1/doctor"), body: fixed("{}"), noReason: true},
	{id: "prunePreview", path: fixed("/v1/prune/preview"), body: fixed(`{"older_than_days":1}`), noReason: true},
	{id: "recover", path: fixed("/v1/recover"), body: why, want: http.StatusConflict},
	{id: "listConsumers", path: fixed("/v1/consumers")},
	{id: "getConsumer", path: fixed("/v1/consumers/dies")},
	{id: "listBehind", path: named("/v1/consumers/waits/behind?tenant=%s")},
	{id: "listWorkers", path: fixed("/v1/workers")},
	{id: "listRecords", path: named("/v1/records?tenant=%s")},
	{id: "getRecord", path: named("/v1/record?key=thing:1&tenant=%s"), foreign: http.StatusNotFound},
	{id: "why", path: named("/v1/record/why?key=thing:1&tenant=%s"), foreign: http.StatusNotFound},
	{id: "listEvents", path: named("/v1/record/events?key=thing:1&tenant=%s"), foreign: http.StatusNotFound},
	{id: "getEvent", path: withDead("/v1/events/%s"), foreign: http.StatusNotFound},
	{id: "traceEvent", path: withDead("/v1/events/%s/trace"), foreign: http.StatusNotFound},
	{id: "readPayload", path: withDead("/v1/events/%s/payload"), body: why, foreign: http.StatusNotFound},
	{id: "listDeadLetters", path: named("/v1/dead-letters?tenant=%s")},
	{id: "getDeadLetter", path: withLetter("/v1/dead-letters/%d"), foreign: http.StatusNotFound},
	{id: "retryConsumer", path: fixed("/v1/consumers/dies/retry"), foreign: http.StatusNotFound,
		body: func(r *rig, tenant string) string { return because(`,"event":%q`, r.dead[tenant]) }},
	{id: "retryEvent", path: withDead("/v1/events/%s/retry"), body: why, foreign: http.StatusNotFound, before: openAgain},
	{id: "retryDeadLetter", path: withLetter("/v1/dead-letters/%d/retry"), body: why, foreign: http.StatusNotFound, before: openAgain},
	{id: "retryDeadLetters", path: fixed("/v1/dead-letters/retry"), foreign: http.StatusConflict, want: http.StatusAccepted, before: openAgain,
		body: func(_ *rig, tenant string) string {
			return because(`,"filter":{"tenant":%q,"type":"dead"},"confirm":1`, tenant)
		}},
	{id: "listBulk", path: fixed("/v1/bulk")},
	{id: "getBulk", path: fixed("/v1/bulk/%s"), foreign: http.StatusNotFound},
	{id: "cancelBulk", path: fixed("/v1/bulk/%s/cancel"), body: fixed("{}"), foreign: http.StatusNotFound, noReason: true},
	{id: "resolveDeadLetter", path: withLetter("/v1/dead-letters/%d/resolve"), body: why, foreign: http.StatusNotFound, before: openAgain},
	{id: "resolveDeadLetters", path: fixed("/v1/dead-letters/resolve"), foreign: http.StatusConflict, want: http.StatusAccepted,
		body: func(_ *rig, tenant string) string {
			return because(`,"filter":{"tenant":%q,"type":%q},"confirm":1`, tenant, internal)
		}},
	{id: "skipHead", path: fixed("/v1/record/skip"), foreign: http.StatusNotFound,
		body: func(_ *rig, tenant string) string {
			return because(`,"key":"thing:1","tenant":%q,"consumer":"waits"`, tenant)
		}},
	{id: "listAudit", path: fixed("/v1/audit")},
	{id: "createToken", path: fixed("/v1/tokens"), foreign: http.StatusForbidden,
		body: func(_ *rig, tenant string) string {
			return because(`,"name":"new","role":"viewer","tenant":%q`, tenant)
		}},
	{id: "listTokens", path: fixed("/v1/tokens")},
	{id: "revokeToken", path: func(r *rig, tenant string) string {
		if tenant == mine {
			return fmt.Sprintf("/v1/tokens/%d/revoke", r.numbers[mine+" viewer"])
		}
		return fmt.Sprintf("/v1/tokens/%d/revoke", r.numbers["viewer"])
	}, body: why, foreign: http.StatusNotFound},
	{id: "pauseConsumer", path: fixed("/v1/consumers/dies/pause"), body: why},
	{id: "resumeConsumer", path: fixed("/v1/consumers/dies/resume"), body: why},
	{id: "disableConsumer", path: fixed("/v1/consumers/dies/disable"), body: why},
	{id: "retireConsumer", path: fixed("/v1/consumers/waits/retire"), body: why},
	{id: "drainWorker", path: fixed("/v1/workers/1/drain"), body: why},
	// It goes on until somebody ends it: TestAStream… is about what it tells.
	{id: "changes", path: fixed("/v1/changes")},
}

// operation is one of the description.
type operation struct {
	*huma.Operation
	role, scope string
}

func operations(t *testing.T, h *api.Handler) map[string]operation {
	t.Helper()
	all := map[string]operation{}
	for path, item := range api.Description(h).Paths {
		for method, op := range map[string]*huma.Operation{http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodPut: item.Put,
			http.MethodDelete: item.Delete, http.MethodPatch: item.Patch, http.MethodHead: item.Head, http.MethodOptions: item.Options} {
			if op == nil {
				continue
			}
			scope, _ := op.Extensions[api.ScopeExtension].(string)
			if len(op.Security) != 1 || len(op.Security[0]["token"]) != 1 || scope != "records" && scope != "installation" || op.Method != method || op.Path != path {
				t.Fatalf("%s %s does not say who may do it, or to what: %+v", method, path, op)
			}
			all[op.OperationID] = operation{op, op.Security[0]["token"][0], scope}
		}
	}
	return all
}

var roles = []string{"viewer", "operator", "admin"}

// leaks says what of an answer to the tenant mine is another tenant's, or nobody's to read; what was asked for by name is no news.
func (r *rig) leaks(a answer, asked string) string {
	for _, text := range []string{`"tenant":"` + others, r.dead[others].String(), r.late[others].String(), others + "/", marked, password} {
		if strings.Contains(a.body, text) && !strings.Contains(asked, text) {
			return text
		}
	}
	return ""
}

func TestEveryOperationRefusesWhoMayNotAndServesWhoMay(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{Doctor: func(context.Context) (api.DoctorReport, error) {
		return api.DoctorReport{OK: true, Checks: []api.DoctorCheck{}}, nil
	}})
	all := operations(t, r.handler)
	var known []string
	for _, s := range surfaces {
		known = append(known, s.id)
		if _, ok := all[s.id]; !ok {
			t.Errorf("there is no operation %s", s.id)
		}
	}
	for id := range all {
		if !slices.Contains(known, id) {
			t.Errorf("no case says who may do %s", id)
		}
	}
	for _, s := range surfaces {
		t.Run(s.id, func(t *testing.T) { r.refuses(t, s, all[s.id]) })
	}
	job := ""
	for _, s := range surfaces {
		if s.before != nil {
			s.before(r)
		}
		op, want := all[s.id], max(s.want, http.StatusOK)
		if s.id == "changes" {
			continue
		}
		a := r.ask(op.role, op.Method, s.target(r, mine, job), s.json(r, mine))
		if a.code != want {
			t.Errorf("%s as %s: %d: %s", s.id, op.role, a.code, a.body)
		}
		if s.id != "readPayload" && strings.Contains(a.body, marked) || strings.Contains(a.body, password) {
			t.Errorf("%s shows a payload: %s", s.id, a.body)
		}
		switch s.id {
		case "readPayload":
			if v := a.value(t); fmt.Sprint(v["payload"]) != "map[deep:[map[Pass_Word:[redacted]]] note:"+marked+"]" {
				t.Errorf("payload: %s", a.body)
			}
		case "retryDeadLetters":
			job = strings.TrimPrefix(a.location(t, "/v1/dead-letters/retry"), "/v1/bulk/")
			// What is another's job one tenant's token does not find.
			for _, path := range []string{"/v1/bulk/" + job, "/v1/bulk/" + job + "/cancel"} {
				method := http.MethodGet
				if strings.HasSuffix(path, "cancel") {
					method = http.MethodPost
				}
				wantProblem(t, r.ask(mine+" operator", method, path, "{}"), http.StatusNotFound, keyline.CodeNotFound)
			}
			if list := r.ask(mine+" operator", http.MethodGet, "/v1/bulk", ""); strings.Contains(list.body, job) {
				t.Errorf("a tenant is shown %s", list.body)
			}
		}
	}
	// Every act is in the audit, with the token's name and a reason.
	for _, line := range must(r.admin.Audit(t.Context(), keyline.AuditFilter{Limit: 1000}))(t) {
		if line.Actor != "root" && (!slices.Contains(roles, line.Actor) || line.Reason != "test") {
			t.Errorf("audit: %+v", line)
		}
	}
	var acted []string
	for _, line := range must(r.admin.Audit(t.Context(), keyline.AuditFilter{Limit: 1000, Actor: "operator"}))(t) {
		acted = append(acted, line.Action)
	}
	slices.Sort(acted)
	for _, action := range []string{"consumer_active", "consumer_disabled", "consumer_paused", "consumer_retired", "drain_worker", "read_payload",
		"resolve_dead_letter", "retry_dead_letter", "skip"} {
		if !slices.Contains(acted, action) {
			t.Errorf("no %s in the audit: %v", action, acted)
		}
	}
}

// target is the address of a request.
func (s surface) target(r *rig, tenant, job string) string {
	path := s.path(r, tenant)
	if strings.Contains(path, "/bulk/%s") {
		if job == "" {
			job = r.dead[tenant].String() // the id of something else
		}
		path = fmt.Sprintf(path, job)
	}
	return path
}

func (s surface) json(r *rig, tenant string) string {
	if s.body == nil {
		return ""
	}
	return s.body(r, tenant)
}

// refuses holds an operation to who may not do it.
func (r *rig) refuses(t *testing.T, s surface, op operation) {
	t.Helper()
	before := r.state()
	target, body := s.target(r, mine, ""), s.json(r, mine)
	for name, secret := range map[string]string{"none": "", "no form": "x", "unknown": "kl_99999_" + strings.Repeat("A", 43),
		"another's number": strings.Replace(r.tokens["admin"], fmt.Sprintf("kl_%d_", r.numbers["admin"]), fmt.Sprintf("kl_%d_", r.numbers["viewer"]), 1)} {
		a := ask(t.Context(), r.handler, secret, op.Method, target, body)
		wantProblem(t, a, http.StatusUnauthorized, keyline.CodeUnauthenticated)
		if a.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: nothing says how to come in", name)
		}
	}
	if i := slices.Index(roles, op.role); i > 0 {
		wantProblem(t, r.ask(roles[i-1], op.Method, target, body), http.StatusForbidden, keyline.CodePermissionDenied)
		wantProblem(t, r.ask(mine+" "+roles[i-1], op.Method, target, body), http.StatusForbidden, keyline.CodePermissionDenied)
	}
	if op.Method != http.MethodGet {
		wantProblem(t, r.ask(op.role, op.Method, target, body, "Content-Type", "text/plain"), http.StatusUnsupportedMediaType, "not_json")
		wantProblem(t, r.ask(op.role, op.Method, target, body, "Sec-Fetch-Site", "cross-site"), http.StatusForbidden, "cross_origin")
		wantProblem(t, r.ask(op.role, op.Method, target, body, "Origin", "https://evil.example"), http.StatusForbidden, "cross_origin")
		if !s.noReason {
			without := strings.Replace(body, `"reason":"test"`, `"reason":" "`, 1)
			wantProblem(t, r.ask(op.role, op.Method, target, without), http.StatusUnprocessableEntity, "invalid_request")
		}
	}
	if s.id == "changes" {
		return
	}
	a := r.ask(mine+" "+op.role, op.Method, s.target(r, others, ""), s.json(r, others))
	switch {
	case op.scope == "installation":
		wantProblem(t, a, http.StatusForbidden, keyline.CodePermissionDenied)
	case s.foreign == http.StatusNotFound:
		wantProblem(t, a, http.StatusNotFound, keyline.CodeNotFound)
	case s.foreign == http.StatusForbidden:
		wantProblem(t, a, http.StatusForbidden, keyline.CodePermissionDenied)
	case s.foreign == http.StatusConflict:
		wantProblem(t, a, http.StatusConflict, keyline.CodeNothingToDo)
	case a.code != http.StatusOK:
		t.Errorf("%d: %s", a.code, a.body)
	}
	if leak := r.leaks(a, s.target(r, others, "")+s.json(r, others)); leak != "" {
		t.Errorf("a tenant is shown %q: %s", leak, a.body)
	}
	if op.Method == http.MethodGet {
		// Its own, and all there is where it does not say: nothing of others either, nor of internal types for a viewer.
		for _, target := range []string{target, strings.NewReplacer("?tenant="+mine, "", "&tenant="+mine, "").Replace(target)} {
			for _, token := range []string{mine + " " + op.role, op.role} {
				a := r.ask(token, op.Method, target, "")
				if leak := r.leaks(a, target); token != op.role && leak != "" {
					t.Errorf("a tenant is shown %q: %s", leak, a.body)
				}
				if op.role == "viewer" && (strings.Contains(a.body, internal) || strings.Contains(a.body, r.secret.String())) && s.id != "listConsumers" && s.id != "getConsumer" && s.id != "overview" {
					t.Errorf("a viewer is shown an internal type: %s", a.body)
				}
			}
		}
	}
	if after := r.state(); after != before {
		t.Errorf("a refused request changed %s to %s", before, after)
	}
}

// coded is an error whose code and text tell of its event.
type coded struct{}

func (coded) Error() string     { return "SECRETMESSAGE" }
func (coded) ErrorCode() string { return "secretcode" }

// Who may not find an event is not told of it by what waits for it, or by what others did about it.
func TestNoAnswerTellsAViewerOfAnInternalEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	c := fails("parks", []string{internal})
	c.OnDead, c.Handle = keyline.Park, func(context.Context, *keyline.Delivery) error { return coded{} }
	w := must(keyline.NewWorker(r.db.Pool(), keyline.Config{Name: "w2", Beside: "w", Logger: slog.New(slog.DiscardHandler)}, c))(t)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := w.Stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	client := must(keyline.NewClient(keyline.ClientConfig{}))(t)
	event := must(client.Append(t.Context(), r.db.Pool(), keyline.NewEvent{Key: keyline.Key{Tenant: mine, Record: "thing:1"}, Type: internal}))(t).ID
	const parked = `select count(*) = 1 from keyline.dead_letters d join keyline.checkpoints k on k.record_id = d.record_id and k.consumer_id = d.consumer_id
		where k.state = 'parked' and d.status = 'open' and d.event_id = '%s' and d.attempt = %d`
	r.await("parked", fmt.Sprintf(parked, event, 1))
	must(r.admin.RetryConsumer(t.Context(), event, "parks", "SECRETREASON"))(t)
	r.await("parked again", fmt.Sprintf(parked, event, 2))
	must(r.admin.Payload(t.Context(), event, "SECRETREASON"))(t)
	must(r.admin.RetryEvent(t.Context(), r.late[mine], "r"))(t)
	told := []string{event.String(), r.secret.String(), internal, "secretcode", "SECRETMESSAGE", "SECRETREASON", "#4 for parks"}
	for target, shows := range map[string]string{ // to an admin, who is told
		"/v1/overview": "", "/v1/health": "", "/v1/consumers": "", "/v1/workers": "", "/v1/records": "", "/v1/dead-letters": "secretcode",
		"/v1/record?key=thing:1&tenant=" + mine: "secretcode", "/v1/record/why?key=thing:1&tenant=" + mine: event.String(),
		"/v1/record/events?key=thing:1&tenant=" + mine: event.String(), "/v1/stuck": "secretcode",
		"/v1/consumers/parks/behind": event.String(), "/v1/audit": event.String(),
		"/v1/events/" + event.String(): internal, "/v1/events/" + event.String() + "/trace": "secretcode",
	} {
		if body := r.ask("admin", http.MethodGet, target, "").body; !strings.Contains(body, shows) {
			t.Errorf("%s does not show an admin %q: %s", target, shows, body)
		}
		for _, who := range []string{"viewer", mine + " viewer"} {
			body := r.ask(who, http.MethodGet, target, "").body
			for _, text := range told {
				// What a consumer is for says the map of consumers, types included.
				if text == internal && (target == "/v1/overview" || target == "/v1/consumers") {
					continue
				}
				if strings.Contains(body, text) && !strings.Contains(target, text) {
					t.Errorf("%s tells the %s of %q: %s", target, who, text, body)
				}
			}
		}
	}
	// What it may find it is still told of, and that the consumer waits.
	for target, shows := range map[string]string{
		"/v1/record/why?key=thing:1&tenant=" + mine: `"reason":"parked"`, "/v1/consumers/parks/behind": `"next_seq":4`, "/v1/audit": "#2 for waits",
		"/v1/stuck": `"consumer":"parks"`, "/v1/record?key=thing:1&tenant=" + mine: `"error_code":"error"`, "/v1/consumers/waits/behind": r.late[mine].String(),
	} {
		if body := r.ask("viewer", http.MethodGet, target, "").body; !strings.Contains(body, shows) {
			t.Errorf("%s does not show a viewer %q: %s", target, shows, body)
		}
	}
}
