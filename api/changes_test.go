package api_test

import (
	"context"
	"encoding/json"
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

// Where one of the newest has changed, what is older may have too, and is not watched.
func TestAStreamSaysThatThereMayBeMoreWhereManyChangeAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{ChangesEvery: 20 * time.Millisecond})
	server := httptest.NewServer(r.handler)
	t.Cleanup(server.Close) // after the streams, for whose end it waits
	s := r.stream(server, "viewer")
	s.until("alive", "at")
	changed := func(resolution, which string) (items int, more bool) {
		t.Helper()
		exec(t, r.db.Pool(), "update keyline.dead_letters set status = 'resolved', resolved_at = clock_timestamp(), resolved_by = 'x', resolution = '"+resolution+"' where "+which)
		seen := s.until("dead_letters", `"resolution":"`+resolution+`"`)
		var v struct {
			Items []keyline.DeadLetter
			More  bool
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(seen[len(seen)-1], "dead_letters ")), &v); err != nil {
			t.Fatal(err)
		}
		return len(v.Items), v.More
	}
	if items, more := changed("one", "id = "+number(r.letters[mine])); items != 1 || more {
		t.Errorf("told of %d where one has changed; more: %v", items, more)
	}
	const many = 150
	exec(t, r.db.Pool(), `insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at)
		select d.record_id, d.seq + n, d.consumer_id, d.event_id, 1, d.reason, d.error_code, d.first_failed_at, d.failed_at
		from keyline.dead_letters d, generate_series(1001, 1000 + `+number(many)+`) n where d.id = `+number(r.letters[mine]))
	s.until("dead_letters", `"more":true`) // none of those that it knew is among the newest
	if items, more := changed("all", "seq > 1000"); items != 100 || !more {
		t.Errorf("told of %d of %d that have changed; more: %v", items, many, more)
	}
	if items, more := changed("the newest", "id = (select max(id) from keyline.dead_letters)"); items != 1 || !more {
		t.Errorf("told of %d where one of the newest %d has changed; more: %v", items, 100, more)
	}
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

// deadlines is an answer that notes, in their order, what is written and the deadlines that are set.
type deadlines struct {
	*httptest.ResponseRecorder
	log     []string
	flushed context.CancelFunc
}

func (d *deadlines) SetWriteDeadline(by time.Time) error {
	if by.IsZero() {
		d.log = append(d.log, "none")
	} else {
		d.log = append(d.log, "deadline")
	}
	return nil
}

func (d *deadlines) Write(text []byte) (int, error) {
	d.log = append(d.log, "write")
	return d.ResponseRecorder.Write(text)
}

func (d *deadlines) Flush() {
	d.log = append(d.log, "flush")
	d.flushed()
}

// Over HTTP/2 a deadline that passes ends a stream that has nothing to tell; over HTTP/1.1 it would end its last bytes.
func TestAStreamHasADeadlineOnlyWhileItIsWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	d := &deadlines{httptest.NewRecorder(), nil, cancel} // the stream ends where it has told something
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/changes", nil)
	request.Header.Set("Authorization", "Bearer "+r.tokens["viewer"])
	r.handler.ServeHTTP(d, request)
	all := strings.Join(d.log, " ")
	if !strings.Contains(all, " flush ") {
		t.Fatalf("%d: %s", d.Code, all)
	}
	for i, what := range d.log {
		if what == "write" || what == "flush" {
			if d.log[i-1] != "deadline" || d.log[i+1] != "none" {
				t.Errorf("%s has no deadline of its own, or one that stays: %s", what, all)
			}
		}
	}
	if !strings.HasSuffix(all, "flush none deadline") {
		t.Errorf("the end has no deadline: %s", all)
	}
}
