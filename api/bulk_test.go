package api_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/api"
	"github.com/keylinehq/keyline/internal/testdb"
)

// die makes n more dead letters of the tenant mine, of the type dead.
func (r *rig) die(n int) {
	r.Helper()
	client := must(keyline.NewClient(keyline.ClientConfig{}))(r.T)
	for i := range n {
		must(client.Append(r.Context(), r.db.Pool(), keyline.NewEvent{Key: keyline.Key{Tenant: mine, Record: fmt.Sprintf("bulk:%d", i)}, Type: "dead"}))(r.T)
	}
	r.await("they died", fmt.Sprintf("select count(*) = %d from keyline.dead_letters where status = 'open'", n+3))
}

// location is where an answer to a request for path says to go on.
func (a answer) location(t testing.TB, path string) string {
	t.Helper()
	at := must(must(url.Parse(path))(t).Parse(a.header.Get("Location")))(t)
	return at.Path
}

// ended waits for the end of a bulk act.
func (r *rig) ended(token, location string) map[string]any {
	r.Helper()
	var v map[string]any
	testdb.Eventually(r.T, func() bool {
		a := r.ask(token, http.MethodGet, location, "")
		if a.code != http.StatusOK {
			r.Fatalf("%d %s", a.code, a.body)
		}
		v = a.value(r.T)
		return v["state"] != "running"
	}, "it ends")
	return v
}

func TestABulkActIsCountedConfirmedAndFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	r.die(4)
	const target = "/v1/dead-letters/resolve"
	body := func(more string) string { return because(`,"filter":{"tenant":"acme","type":"dead"}%s`, more) }
	if a := r.ask("operator", http.MethodPost, target, body(`,"dry_run":true`)); a.code != http.StatusOK || a.value(t)["matched"] != float64(5) {
		t.Fatalf("%d %s", a.code, a.body)
	}
	for _, more := range []string{"", `,"confirm":4`, `,"confirm":6`} {
		a := r.ask("operator", http.MethodPost, target, body(more))
		wantProblem(t, a, http.StatusConflict, "not_confirmed")
		if !strings.Contains(a.body, "5 dead letters") {
			t.Error(a.body)
		}
	}
	if n := len(must(r.admin.Audit(t.Context(), keyline.AuditFilter{Action: "resolve_dead_letter"}))(t)); n != 0 {
		t.Errorf("%d were resolved unconfirmed", n)
	}
	a := r.ask(mine+" operator", http.MethodPost, target, body(`,"confirm":5`))
	if a.code != http.StatusAccepted {
		t.Fatalf("%d %s", a.code, a.body)
	}
	for _, token := range []string{"operator", mine + " operator"} {
		v := r.ended(token, a.location(t, target))
		report := v["report"].(map[string]any)
		if v["state"] != "done" || v["ended"] != float64(5) || report["applied"] != float64(5) || report["matched"] != float64(5) || v["token"] != mine+" operator" || v["ended_at"] == nil {
			t.Errorf("%v", v)
		}
	}
	lines := must(r.admin.Audit(t.Context(), keyline.AuditFilter{Action: "resolve_dead_letter"}))(t)
	if len(lines) != 5 || lines[0].Actor != mine+" operator" || lines[0].Reason != "test" {
		t.Errorf("%+v", lines)
	}
	wantProblem(t, r.ask("operator", http.MethodPost, target, body(`,"confirm":0`)), http.StatusConflict, keyline.CodeNothingToDo)
}

func TestABulkActStopsWhereItIsCancelledOrItsTokenEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	r.die(12) // more would open the breaker
	// start counts and begins. What an ended act had given may be carried out after that, and between the two, so that
	// the count is asked for again where it is another by then, as a person would.
	start := func(token string) (location string) {
		t.Helper()
		const target = "/v1/dead-letters/resolve"
		testdb.Eventually(t, func() bool {
			count := r.ask(token, http.MethodPost, target, because(`,"filter":{"type":"dead"},"dry_run":true`))
			// One in a second: it would take a dozen.
			a := r.ask(token, http.MethodPost, target, because(`,"filter":{"type":"dead"},"per_second":1,"confirm":%v`, count.value(t)["matched"]))
			if a.code == http.StatusConflict && strings.Contains(a.body, "not_confirmed") {
				return false
			}
			if a.code != http.StatusAccepted {
				t.Fatalf("%d %s", a.code, a.body)
			}
			location = a.location(t, target)
			return true
		}, "it begins")
		return location
	}
	first := start("operator")
	if a := r.ask("admin", http.MethodPost, first+"/cancel", "{}"); a.code != http.StatusOK {
		t.Fatalf("%d %s", a.code, a.body)
	}
	if v := r.ended("operator", first); v["state"] != "cancelled" || v["report"].(map[string]any)["applied"].(float64) > 8 {
		t.Errorf("%v", v)
	}
	second := start("operator")
	must(r.admin.RevokeToken(t.Context(), r.numbers["operator"], "r"))(t)
	if v := r.ended("admin", second); v["state"] != "cancelled" || v["report"].(map[string]any)["applied"].(float64) > 8 {
		t.Errorf("%v", v)
	}
}
