package httpapi_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/faults"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
)

// script is a session with every operation, with what succeeds and what does
// not; its answers, without ids and times.
func script(t *testing.T, c client) []string {
	var log []string
	ids := map[string]string{}
	run := func(method, path, body string, headers ...string) answer {
		t.Helper()
		for name, id := range ids {
			path = strings.ReplaceAll(path, name, id)
		}
		got := c.do(method, path, body, headers...)
		log = append(log, method+" "+got.header.Get("ETag")+" "+got.header.Get("Retry-After")+" "+got.String())
		return got
	}
	for _, name := range []string{"$1", "$2", "$3"} {
		ids[name] = run("POST", "/activities", strings.Replace(newCall, "offer", "offer "+name[1:], 1)).activity(t).ID.String()
	}
	run("POST", "/activities", `{"kind": "lunch"}`)
	run("PATCH", "/activities/$1", `{"account": "initech"}`, "If-Match", `"1"`)
	run("PATCH", "/activities/$1", `{"account": "initech"}`, "If-Match", `"1"`)
	run("POST", "/activities/$1/reassign", `{"owner": "carol"}`, "Idempotency-Key", "k")
	run("POST", "/activities/$1/reassign", `{"owner": "carol"}`, "Idempotency-Key", "k")
	run("POST", "/activities/$1/assign", `{"owner": "carol"}`)
	run("POST", "/activities/$1/reschedule", `{"scheduled_at": "2026-03-03T09:00:00Z"}`)
	run("POST", "/activities/$1/start", ``)
	run("POST", "/activities/$1/start", ``)
	run("POST", "/activities/$1/notes", `{"body": "psst"}`)
	run("POST", "/activities/$1/complete", `{"outcome": "sold"}`)
	run("POST", "/activities/$1/cancel", ``)
	run("POST", "/activities/$2/cancel", `{"reason": "no time"}`)
	run("DELETE", "/activities/$2", ``)
	run("DELETE", "/activities/$3", ``)
	run("GET", "/activities/$1", ``)
	run("GET", "/activities/$2", ``)
	for i, line := range log {
		for name, id := range ids {
			line = strings.ReplaceAll(line, id, name)
		}
		log[i] = times.ReplaceAllString(line, `"$1": now`)
	}
	return log
}

var times = regexp.MustCompile(`"(created_at|updated_at)":"[^"]*"`)

// Promise (P18): the API answers the same whether workers are down, run, or run
// with consumers of which each fails, and an event takes them all down.
func TestTheAPIAnswersTheSameWhateverWorkersDo(t *testing.T) {
	t.Parallel()
	answers := map[string][]string{}
	for _, name := range []string{"no worker", "a worker", "failing consumers", "panicking consumers", "a worker that has stopped"} {
		a := crmtest.New(t)
		cfg := keyline.Config{}
		switch name {
		case "a worker":
			a.Start(cfg, a.Consumers()...)
		case "failing consumers":
			a.Start(cfg, faults.Inject(a.Consumers(), faults.Poison(faults.Type("activity.completed")), faults.Transient(nil, 1000))...)
		case "panicking consumers":
			a.Start(cfg, faults.Inject(a.Consumers(), faults.Panic(nil))...)
		case "a worker that has stopped":
			stop := a.Start(cfg, a.Consumers()...)
			stop()
		}
		answers[name] = script(t, newClient(t, a.Service))
		if name == "no worker" || name == "a worker that has stopped" {
			if n := crmtest.Get[int64](a, "select count(*) from crm.timeline"); n != 0 {
				t.Errorf("%s: the timeline has %d lines", name, n)
			}
			continue
		}
		// Those that run do run: their consumers have seen all of it.
		a.Settled()
		dead := crmtest.Get[int64](a, "select count(*) from keyline.dead_letters")
		if failing := strings.HasSuffix(name, "consumers"); failing != (dead > 0) {
			t.Errorf("%s: %d dead letters", name, dead)
		}
		for _, table := range []string{"crm.activities", "crm.audit_log", "keyline.events"} {
			if n := crmtest.Get[int64](a, "select count(*) from "+table); n == 0 {
				t.Errorf("%s: %s is empty", name, table)
			}
		}
	}
	for name, got := range answers {
		if diff := cmp.Diff(answers["no worker"], got); diff != "" {
			t.Errorf("%s, against no worker:\n%s", name, diff)
		}
	}
}

// Promise: the views are what the consumers make of the events, and no more.
func TestTheViewsComeFromTheConsumers(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	c := newClient(t, a.Service)
	id := c.do("POST", "/activities", newCall).activity(t).ID.String()
	c.do("POST", "/activities/"+id+"/notes", `{"body": "psst"}`)
	calendar := "/calendar?from=2026-03-02T00:00:00Z&to=2026-03-03T00:00:00Z"
	for _, path := range []string{"/activities/" + id + "/timeline", calendar, "/dashboard"} {
		if got := c.do("GET", path, ""); got.status != 200 || got.body != "[]\n" {
			t.Errorf("before a worker ran, %s: %s", path, got)
		}
	}
	a.Start(keyline.Config{}, a.Consumers()...)
	a.Settled()
	for path, want := range map[string]string{
		"/activities/" + id + "/timeline": `"event_type":"activity.created"`, calendar: `"subject":"Ask about the offer"`, "/dashboard": `"events":1`,
	} {
		if got := c.do("GET", path, ""); got.status != 200 || strings.Count(got.body, want) != 1 || strings.Contains(got.body, "note") {
			t.Errorf("%s: %s", path, got)
		}
		if got := c.do("GET", path, "", "X-Organization", "other"); got.body != "[]\n" {
			t.Errorf("another organization, %s: %s", path, got)
		}
	}
	if got := c.do("GET", calendar, ""); strings.Contains(got.body, string(crm.Planned)) {
		t.Errorf("calendar: %s", got)
	}
}
