package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/api"
)

// Promise: a request means one thing. What one reader of it would take for this and another for that is refused, and no filter is left out in
// silence.
func TestARequestThatSaysTwoThingsIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	before := r.state()
	for _, target := range []string{"/v1/records?tenant=%zz", "/v1/records?tenant=acme;limit=1", "/v1/records?limit=1&tenant=%"} {
		wantProblem(t, r.ask("admin", http.MethodGet, target, ""), http.StatusBadRequest, "invalid_request")
	}
	for _, target := range []string{"/v1/records?tenant=acme&tenant=otherstenant", "/v1/records?%74enant=acme&tenant=", "/v1/dead-letters?status=open&status=resolved"} {
		a := r.ask("admin", http.MethodGet, target, "")
		wantProblem(t, a, http.StatusUnprocessableEntity, "invalid_request")
		if !strings.Contains(a.body, "twice") {
			t.Errorf("%s: %s", target, a.body)
		}
	}
	const tokens, skip = "/v1/tokens", "/v1/record/skip"
	for body, target := range map[string]string{
		`{"reason":"r","name":"x","role":"viewer","expires_in_days":1,"EXPIRES_IN_DAYS":99999}`:             tokens,
		`{"reason":"r","name":"x","role":"viewer","expires_in_days":99999,"expires_in_days":1}`:             tokens,
		`{"reason":"r","rea\u0073on":" ","name":"x","role":"viewer"}`:                                       tokens,
		`{"reason":"r","ſcope":1,"Reaſon":" ","name":"x","role":"viewer"}`:                                  tokens,
		`{"reason":"r","Reason":" ","key":"thing:1","consumer":"waits"}`:                                    skip,
		`{"reason":"r","wait_seconds":1,"Wait_Seconds":999999999,"key":"thing:1","consumer":"waits"}`:       skip,
		`{"reason":"r","filter":{"tenant":"acme","Tenant":"otherstenant"},"dry_run":true}`:                  "/v1/dead-letters/retry",
		`{"reason":"r","filter":{"tenant":"acme"},"FILTER":{"type":"dead"},"dry_run":true}`:                 "/v1/dead-letters/retry",
		`{"reason":"r","x":[{"a":1},[],{"b":{"c":[1,{"d":1,"D":2}]}}],"filter":{"tenant":"acme"},"y":null}`: "/v1/dead-letters/retry",
	} {
		a := r.ask("admin", http.MethodPost, target, body)
		wantProblem(t, a, http.StatusUnprocessableEntity, "invalid_request")
		if !strings.Contains(a.body, "twice") {
			t.Errorf("%s: %s", body, a.body)
		}
	}
	if after := r.state(); after != before {
		t.Errorf("%s became %s", before, after)
	}
	// What says one thing, and says it oddly, is understood.
	must(must(keyline.NewClient(keyline.ClientConfig{}))(t).Append(t.Context(), r.db.Pool(), keyline.NewEvent{Key: keyline.Key{Record: "of nobody"}, Type: "x"}))(t)
	for _, target := range []string{"/v1/records?tenant", "/v1/records?tenant=", "/v1/records?limit=5&%74enant=&&"} {
		if a := r.ask("admin", http.MethodGet, target, ""); a.code != http.StatusOK || strings.Count(a.body, `"tenant":""`) != 1 || strings.Contains(a.body, mine) {
			t.Errorf("%s: %d %s", target, a.code, a.body)
		}
	}
	body := `{"Reason":"r","filter":{"tenant":"acme","record":"x","type":"record"},"per_second":1,"dry_run":true}`
	if a := r.ask("admin", http.MethodPost, "/v1/dead-letters/retry", body); a.code != http.StatusOK {
		t.Errorf("%d %s", a.code, a.body)
	}
}

// Promise: a cursor is one list's.
func TestACursorOfAnotherListIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	lists := []string{"/v1/records?", "/v1/record/events?key=thing:1&tenant=" + mine + "&", "/v1/dead-letters?", "/v1/audit?", "/v1/tokens?", "/v1/consumers/waits/behind?"}
	for _, of := range lists {
		next, _ := r.ask("admin", http.MethodGet, of+"limit=1", "").value(t)["next"].(string)
		if next == "" {
			t.Fatalf("%s has one page", of)
		}
		for _, other := range lists {
			a := r.ask("admin", http.MethodGet, other+"cursor="+next, "")
			if other == of && a.code != http.StatusOK {
				t.Errorf("%s does not know its own cursor: %s", of, a.body)
			}
			if other != of {
				wantProblem(t, a, http.StatusUnprocessableEntity, "invalid_request")
			}
		}
		for _, bad := range []string{next[1:], next + "A", "MQ", "bnVsbA", "e30", strings.ToUpper(next)} {
			wantProblem(t, r.ask("admin", http.MethodGet, of+"cursor="+bad, ""), http.StatusUnprocessableEntity, "invalid_request")
		}
	}
}

// A ServeMux hands a HEAD to what answers a GET: a stream would hold its place, and the connection, without end.
func TestAHeadOfTheStreamHoldsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{Streams: 1})
	server := httptest.NewServer(r.handler)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // first: one that is held would hold the end of the test too
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, target := range []string{"/v1/changes", "/v1/changes", "/v1/whoami"} {
		request := must(http.NewRequestWithContext(ctx, http.MethodHead, server.URL+target, nil))(t)
		request.Header.Set("Authorization", "Bearer "+r.tokens["viewer"])
		response := must(server.Client().Do(request))(t)
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", target, response.StatusCode)
		}
	}
	r.stream(server, "viewer").until("alive", "at")
}

// The program of docs/api.md mounts the API under a prefix.
func TestABulkActIsFollowedUnderAPrefix(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	mux := http.NewServeMux()
	mux.Handle("/admin/", http.StripPrefix("/admin", r.handler))
	const target = "/admin/v1/dead-letters/resolve"
	a := ask(t.Context(), mux, r.tokens["operator"], http.MethodPost, target, because(`,"filter":{"type":"dead"},"confirm":2`))
	if a.code != http.StatusAccepted {
		t.Fatalf("%d %s", a.code, a.body)
	}
	at := a.location(t, target)
	if b := ask(t.Context(), mux, r.tokens["operator"], http.MethodGet, at, ""); b.code != http.StatusOK || b.value(t)["id"] != a.value(t)["job"].(map[string]any)["id"] {
		t.Errorf("%s: %d %s", at, b.code, b.body)
	}
	r.ended("operator", strings.TrimPrefix(at, "/admin"))
	if a := ask(t.Context(), mux, r.tokens["operator"], http.MethodPost, target, because(`,"filter":{},"dry_run":true`)); a.code != http.StatusOK || a.header.Values("Location") != nil {
		t.Errorf("%d %s: %v", a.code, a.body, a.header)
	}
	if a := ask(t.Context(), mux, r.tokens["operator"], http.MethodGet, fmt.Sprintf("/admin/v1/events/%s", r.dead[mine]), ""); a.code != http.StatusOK {
		t.Errorf("%d %s", a.code, a.body)
	}
}
