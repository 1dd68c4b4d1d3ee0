package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/api"
)

func TestAStreamTellsEachTokenWhatItsListsShow(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{ChangesEvery: 20 * time.Millisecond})
	server := httptest.NewServer(r.handler)
	t.Cleanup(server.Close) // after the streams, for whose end it waits
	all, one, viewer := r.stream(server, "admin"), r.stream(server, mine+" admin"), r.stream(server, mine+" viewer")
	for _, s := range []*stream{all, one, viewer} {
		s.until("alive", "at")
	}
	client := must(keyline.NewClient(keyline.ClientConfig{}))(t)
	dies := func(tenant, record, eventType string) {
		must(client.Append(t.Context(), r.db.Pool(), keyline.NewEvent{Key: keyline.Key{Tenant: tenant, Record: record}, Type: eventType, Payload: marked}))(t)
	}
	dies(others, "thing:others", "dead")
	all.until("dead_letters", "thing:others")
	must(r.admin.ResolveDeadLetter(t.Context(), r.letters[others], "r"))(t)
	all.until("audit", `"action":"resolve_dead_letter"`)
	if err := r.admin.PauseConsumer(t.Context(), "waits", "r"); err != nil {
		t.Fatal(err)
	}
	all.until("consumers", `"status":"paused"`)
	dies(mine, "thing:secret", internal)
	all.until("dead_letters", "thing:secret")
	dies(mine, "thing:mine", "dead")
	must(r.admin.RetryEvent(t.Context(), r.dead[mine], "r"))(t)
	all.until("dead_letters", "thing:mine")
	// What is mine comes last: all that was in front of it would have come before.
	for name, s := range map[string]*stream{"admin": one, "viewer": viewer} {
		seen := strings.Join(append(s.until("dead_letters", "thing:mine"), s.until("audit", `"action":"retry_dead_letter"`)...), "\n")
		if leak := r.leaks(answer{body: seen}, ""); leak != "" || strings.Contains(seen, "thing:others") || strings.Contains(seen, "consumers ") || strings.Contains(seen, "workers ") {
			t.Errorf("one tenant's %s is told %q of others: %s", name, leak, seen)
		}
		if shown := strings.Contains(seen, internal); shown != (name == "admin") {
			t.Errorf("%s is told of the internal type: %v", name, shown)
		}
	}
	if _, err := r.worker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.until("workers", "items")
}

func TestAStreamEndsWithItsTokenAndWithTheServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{ChangesEvery: 20 * time.Millisecond, Streams: 2})
	server := httptest.NewServer(r.handler)
	t.Cleanup(server.Close) // after the streams, for whose end it waits
	ended := func(s *stream) {
		t.Helper()
		for s.next("its end")[0] != "" {
		}
	}
	a, b := r.stream(server, "viewer"), r.stream(server, "operator")
	a.until("alive", "at")
	b.until("alive", "at")
	wantProblem(t, r.ask("admin", http.MethodGet, "/v1/changes", ""), http.StatusTooManyRequests, "too_many")
	if v := r.ask("admin", http.MethodPost, "/v1/tokens/"+number(r.numbers["viewer"])+"/revoke", because("")); v.code != http.StatusOK {
		t.Fatal(v)
	}
	ended(a)
	c := r.stream(server, mine+" viewer") // the place is free again
	c.until("alive", "at")
	if err := r.handler.Close(context.Background()); err != nil {
		t.Error(err)
	}
	ended(b)
	ended(c)
}
