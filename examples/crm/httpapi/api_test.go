package httpapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/httpapi"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
)

// client calls the API of one application.
type client struct {
	t       testing.TB
	handler http.Handler
}

func newClient(t testing.TB, service *crm.Service) client {
	return client{t, httpapi.New(service, httpapi.Options{Logger: slog.New(slog.DiscardHandler)})}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// activity is the answer's activity.
func (a answer) activity(t testing.TB) (v crm.Activity) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%s: %v", a, err)
	}
	return v
}

// problem is the answer's code and field.
func (a answer) problem(t testing.TB) string {
	t.Helper()
	var p struct {
		Code, Field string
		Status      int
	}
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Status != a.status || a.header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("%s is no problem: %v, %v", a, err, a.header)
	}
	return strings.TrimSpace(p.Code + " " + p.Field)
}

// do sends a request as alice of acme; headers come in pairs, and an empty
// value takes one away.
func (c client) do(method, path, body string, headers ...string) answer {
	c.t.Helper()
	r := httptest.NewRequestWithContext(c.t.Context(), method, path, strings.NewReader(body))
	r.Header.Set(httpapi.HeaderOrganization, crmtest.Org)
	r.Header.Set(httpapi.HeaderActor, "alice")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		}
	}
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, r)
	text, err := io.ReadAll(w.Result().Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer{w.Code, w.Result().Header, string(text)}
}

const newCall = `{"kind": "call", "subject": "Ask about the offer", "owner": "bob", "scheduled_at": "2026-03-02T10:00:00+01:00"}`

// Promise (P1): the nine operations by HTTP, each with the status and the ETag
// that belong to it.
func TestTheNineOperations(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	c := newClient(t, a.Service)
	created := c.do("POST", "/activities", newCall)
	one := created.activity(t)
	if created.status != http.StatusCreated || created.header.Get("Location") != "/activities/"+one.ID.String() || one.Status != crm.Planned || one.Minutes != 30 {
		t.Fatalf("created: %s, %v", created, created.header)
	}
	path := "/activities/" + one.ID.String()
	other := c.do("POST", "/activities", `{"kind": "task", "subject": "Tidy up"}`).activity(t)
	another := "/activities/" + other.ID.String()
	for _, step := range []struct {
		method, path, body string
		status             int
		holds              func(crm.Activity) bool
	}{
		{"PATCH", path, `{"subject": "Ask again"}`, 200, func(a crm.Activity) bool { return a.Subject == "Ask again" && a.Version == 2 }},
		{"POST", path + "/reassign", `{"owner": "carol"}`, 200, func(a crm.Activity) bool { return *a.Owner == "carol" && *a.PreviousOwner == "bob" }},
		{"POST", path + "/reschedule", `{"scheduled_at": "2026-03-03T09:00:00Z", "minutes": 15}`, 200, func(a crm.Activity) bool { return a.Minutes == 15 && a.PreviousScheduledAt.Hour() == 9 }},
		{"POST", path + "/start", ``, 200, func(a crm.Activity) bool { return a.Status == crm.InProgress }},
		{"POST", path + "/complete", `{"outcome": "sold"}`, 200, func(a crm.Activity) bool { return a.Status == crm.Completed && a.Outcome == "sold" }},
		{"POST", path + "/notes", `{"body": "be careful"}`, 200, func(a crm.Activity) bool { return a.Version == 7 }},
		{"GET", path, ``, 200, func(a crm.Activity) bool { return a.Version == 7 && a.Status == crm.Completed }},
		{"POST", another + "/assign", `{"owner": "dora"}`, 200, func(a crm.Activity) bool { return *a.Owner == "dora" && a.PreviousOwner == nil }},
		{"POST", another + "/cancel", `{"reason": "no time"}`, 200, func(a crm.Activity) bool { return a.Status == crm.Cancelled && a.Outcome == "no time" }},
	} {
		got := c.do(step.method, step.path, step.body)
		if got.status != step.status {
			t.Fatalf("%s %s: %s", step.method, step.path, got)
		}
		activity := got.activity(t)
		if !step.holds(activity) || got.header.Get("ETag") != fmt.Sprintf(`"%d"`, activity.Version) || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %s, %v", step.method, step.path, got, got.header)
		}
	}
	if got := c.do("DELETE", another, ""); got.status != http.StatusNoContent || got.body != "" {
		t.Errorf("deleted: %s", got)
	}
	if got := c.do("GET", another, ""); got.status != http.StatusNotFound {
		t.Errorf("after its deletion: %s", got)
	}
}

// Promise: what is refused has its own status and code, and leaves nothing.
func TestRefusals(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	c := newClient(t, a.Service)
	id := c.do("POST", "/activities", newCall, httpapi.HeaderIdempotencyKey, "k1").activity(t).ID.String()
	path := "/activities/" + id
	before := a.State()
	for _, tc := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		problem                  string
	}{
		{"no organization", "POST", "/activities", newCall, []string{httpapi.HeaderOrganization, ""}, 400, "bad_request X-Organization"},
		{"no organization to read", "GET", path, "", []string{httpapi.HeaderOrganization, ""}, 400, "bad_request X-Organization"},
		{"no actor", "POST", path + "/start", "", []string{httpapi.HeaderActor, ""}, 400, "bad_request X-Actor"},
		{"no JSON", "POST", "/activities", "{", nil, 400, "bad_request body"},
		{"a field too many", "POST", path + "/assign", `{"boss": "x"}`, nil, 400, "bad_request body"},
		{"two bodies", "POST", path + "/assign", `{"owner": "x"} {}`, nil, 400, "bad_request body"},
		{"a wrong ETag", "POST", path + "/start", "", []string{httpapi.HeaderIfMatch, "x"}, 400, "bad_request If-Match"},
		{"no time", "GET", "/calendar?from=now", "", nil, 400, "bad_request from"},
		{"too large", "PATCH", path, `{"details": "` + strings.Repeat("x", 70_000) + `"}`, nil, 413, "too_large"},
		{"an invalid kind", "POST", "/activities", `{"kind": "lunch", "subject": "x"}`, nil, 422, "invalid kind"},
		{"no outcome", "POST", path + "/complete", ``, nil, 422, "invalid outcome"},
		{"no id", "POST", "/activities/7/start", "", nil, 404, "not_found"},
		{"unknown", "POST", "/activities/" + uuid.NewString() + "/start", "", nil, 404, "not_found"},
		{"another organization's", "GET", path, "", []string{httpapi.HeaderOrganization, "other"}, 404, "not_found"},
		{"has an owner", "POST", path + "/assign", `{"owner": "x"}`, nil, 409, "transition"},
		{"stale", "POST", path + "/start", "", []string{httpapi.HeaderIfMatch, `"9"`}, 412, "stale"},
		{"a used key", "POST", path + "/start", "", []string{httpapi.HeaderIdempotencyKey, "k1"}, 422, "idempotency_key_reused"},
	} {
		got := c.do(tc.method, tc.path, tc.body, tc.headers...)
		if got.status != tc.status || got.problem(t) != tc.problem {
			t.Errorf("%s: %s", tc.name, got)
		}
	}
	if a.State() != before {
		t.Error("something was written")
	}
	if got := c.do("PUT", path, ""); got.status != http.StatusMethodNotAllowed {
		t.Errorf("PUT: %s", got)
	}
}

// Promise: a request that is sent again under its key is answered as before.
func TestARepeatedRequestIsAnsweredAsBefore(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	c := newClient(t, a.Service)
	first := c.do("POST", "/activities", newCall, httpapi.HeaderIdempotencyKey, "k1")
	again := c.do("POST", "/activities", newCall, httpapi.HeaderIdempotencyKey, "k1")
	if first.String() != again.String() || first.header.Get("Location") != again.header.Get("Location") {
		t.Errorf("first %s\nagain %s", first, again)
	}
	if n := crmtest.Get[int64](a, "select count(*) from keyline.events"); n != 1 {
		t.Errorf("%d events", n)
	}
}

// Promise (P2): correlation and causation come from the request's headers, and
// where there are none the request itself is both.
func TestCorrelationAndCausationComeFromTheRequest(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	c := newClient(t, a.Service)
	given := c.do("POST", "/activities", newCall, httpapi.HeaderCorrelationID, "sale-7", httpapi.HeaderRequestID, "request-3").activity(t)
	if h := a.Events(given.ID)[0].Headers; h["correlation_id"] != "sale-7" || h["causation_id"] != "request-3" {
		t.Errorf("headers %v", h)
	}
	drawn := c.do("POST", "/activities", newCall).activity(t)
	if h := a.Events(drawn.ID)[0].Headers; h["correlation_id"] == "" || h["correlation_id"] != h["causation_id"] {
		t.Errorf("headers %v", h)
	}
}

// Promise: where the database does not serve, the client is told to come back,
// and nothing about it.
func TestWithoutADatabaseTheClientIsToldToComeBack(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	pool := a.NewPool(nil)
	c := newClient(t, crm.NewService(pool, a.Client))
	pool.Close()
	for _, got := range []answer{c.do("POST", "/activities", newCall), c.do("GET", "/activities/"+uuid.NewString(), ""), c.do("GET", "/dashboard", "")} {
		if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || strings.Contains(got.body, "pool") {
			t.Errorf("%s", got)
		}
	}
	a.Exec("drop table crm.audit_log")
	if got := newClient(t, a.Service).do("POST", "/activities", newCall); got.status != http.StatusInternalServerError || strings.Contains(got.body, "audit") {
		t.Errorf("%s", got)
	}
}
