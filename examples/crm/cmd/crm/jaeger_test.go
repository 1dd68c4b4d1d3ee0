package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/jaeger"
	"github.com/keylinehq/keyline/internal/testdb"
)

// envJaegerBinary names a Jaeger to run against; `make test/jaeger` builds one and sets it.
const envJaegerBinary = "KEYLINE_TEST_JAEGER"

// stage is the reference application as separate processes, tracing to a Jaeger.
type stage struct {
	*testing.T
	bin    string
	db     *testdb.DB
	pool   *pgxpool.Pool
	api    string
	query  string // Jaeger's
	otlp   string
	client *http.Client
	jaeger *jaeger.Client
}

func newStage(t *testing.T) *stage {
	t.Helper()
	binary := os.Getenv(envJaegerBinary)
	if binary == "" {
		t.Skipf("%s names no Jaeger: make test/jaeger", envJaegerBinary)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s := &stage{T: t, bin: t.TempDir(), db: testdb.NewEmpty(t), client: &http.Client{Transport: transport, Timeout: 30 * time.Second}}
	s.pool = s.db.Pool()
	build := exec.Command("go", "build", "-o", s.bin, "./examples/crm/cmd/crm", "./cmd/keyline")
	build.Dir = filepath.Join("..", "..", "..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	query, grpc := freeAddr(t), freeAddr(t)
	s.query, s.otlp = "http://"+query, "http://"+grpc
	ended := s.start("jaeger", exec.Command(binary, "--config", filepath.Join("..", "..", "..", "..", "tools", "jaeger", "config.yaml")),
		"JAEGER_QUERY_PORT="+port(t, query), "JAEGER_QUERY_GRPC_PORT="+port(t, freeAddr(t)),
		"JAEGER_OTLP_GRPC_PORT="+port(t, grpc), "JAEGER_OTLP_HTTP_PORT="+port(t, freeAddr(t)))
	var err error
	if s.jaeger, err = jaeger.New(s.query, s.client); err != nil {
		t.Fatal(err)
	}
	testdb.Eventually(t, func() bool {
		select {
		case <-ended:
			t.Fatal("Jaeger ended before it answered")
		default:
		}
		_, err := s.jaeger.Services(t.Context())
		return err == nil
	}, "Jaeger to answer")
	return s
}

func port(t *testing.T, addr string) string {
	t.Helper()
	_, p, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// start starts a program that ends with the test.
func (s *stage) start(name string, cmd *exec.Cmd, env ...string) (ended <-chan struct{}) {
	s.Helper()
	log, err := os.Create(filepath.Join(s.bin, name+".log"))
	if err != nil {
		s.Fatal(err)
	}
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		_ = cmd.Wait() // its log tells more
	}()
	s.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-waited
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); s.Failed() && err == nil {
			s.Logf("%s wrote\n%s", name, text)
		}
	})
	return waited
}

// crm starts a part of the application under a service name of its own.
func (s *stage) crm(service string, args ...string) {
	s.Helper()
	s.start(service, exec.Command(filepath.Join(s.bin, "crm"), append(args, "-otlp", "-database-url", s.db.URL)...),
		"OTEL_EXPORTER_OTLP_ENDPOINT="+s.otlp, "OTEL_SERVICE_NAME="+service, "OTEL_BSP_SCHEDULE_DELAY=100")
}

// keyline runs the command line and returns its standard output.
func (s *stage) keyline(args ...string) []byte {
	s.Helper()
	cmd := exec.Command(filepath.Join(s.bin, "keyline"), args...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+s.db.URL, "NO_COLOR=1")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		s.Fatalf("keyline %s: %v\n%s", strings.Join(args, " "), err, complaint.String())
	}
	return out
}

func (s *stage) exec(sql string) {
	s.Helper()
	if _, err := s.pool.Exec(s.Context(), sql); err != nil {
		s.Fatal(err)
	}
}

func scan[T any](s *stage, sql string, args ...any) (v T) {
	s.Helper()
	if err := s.pool.QueryRow(s.Context(), sql, args...).Scan(&v); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
	return v
}

// create posts an activity, with a trace context of the caller's or "", and returns its event's id.
func (s *stage) create(subject, traceparent string) (event string) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.api+"/activities",
		strings.NewReader(fmt.Sprintf(`{"kind": "call", "subject": %q, "owner": "bob"}`, subject)))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("X-Organization", "acme")
	r.Header.Set("X-Actor", "alice")
	if traceparent != "" {
		r.Header.Set("traceparent", traceparent)
	}
	answer, err := s.client.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	var body struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil || answer.StatusCode != http.StatusCreated {
		s.Fatalf("%s, %v", answer.Status, err)
	}
	return scan[string](s, `select e.id::text from keyline.events e join keyline.records r on r.id = e.record_id where r.record_key = $1`, "activity:"+body.ID)
}

// of are the spans that f takes, by time.
func of(spans []jaeger.Span, f func(jaeger.Span) bool) []jaeger.Span {
	list := slices.DeleteFunc(slices.Clone(spans), func(s jaeger.Span) bool { return !f(s) })
	slices.SortFunc(list, func(x, y jaeger.Span) int { return x.Start.Compare(y.Start) })
	return list
}

func named(name string) func(jaeger.Span) bool {
	return func(s jaeger.Span) bool { return s.Name == name }
}

// sqlBelow are the statements somewhere below a span, by their first word.
func sqlBelow(spans []jaeger.Span, top string) string {
	below := map[string]bool{top: true}
	var words []string
	for again := true; again; {
		again = false
		for _, s := range of(spans, func(s jaeger.Span) bool { return below[s.ParentID] && !below[s.SpanID] }) {
			below[s.SpanID], again = true, true
			if s.Attributes["db.query.text"] != "" {
				words = append(words, s.Name)
			}
		}
	}
	return strings.Join(words, " ")
}

var crmConsumers = []string{"timeline", "calendar", "dashboard", "notification"}

// Promise: one trace leads from the request through the append to each
// consumer's run and its SQL; retries and a replay are roots of their own, linked to the append, and are
// there if the request's trace is, and not if it is not. On a real Jaeger.
func TestJaegerShowsTheWaterfall(t *testing.T) {
	s := newStage(t)
	log := exec.Command(filepath.Join(s.bin, "crm"), "migrate", "-database-url", s.db.URL)
	if out, err := log.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	addr := freeAddr(t)
	s.api = "http://" + addr
	s.crm("crm-api", "serve", "-addr", addr)
	s.crm("crm-worker", "worker", "-retry", "100ms,100ms,100ms")
	testdb.Eventually(t, func() bool {
		return scan[int](s, `select count(*) from keyline.consumers where status = 'active' and sweep is null`) == len(crmConsumers)
	}, "the worker to be ready")
	testdb.Eventually(t, func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, "the API to listen")

	// The provider is down for two activities: one of a request that is traced, one of a caller that decided against it.
	s.exec(`create function fake_provider.down() returns trigger language plpgsql as $$ begin raise exception 'the provider is down'; end $$;
		create trigger down before insert on fake_provider.messages for each row execute function fake_provider.down()`)
	event := s.create("Ask about the offer", "")
	unsampled := s.create("Nobody traces this", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	testdb.Eventually(t, func() bool {
		return scan[int](s, `select count(*) from keyline.dead_letters where status = 'open'`) == 2
	}, "the notifications to die")
	s.exec("drop trigger down on fake_provider.messages")
	for _, e := range []string{event, unsampled} {
		id := scan[int64](s, "select id from keyline.dead_letters where event_id::text = $1", e)
		s.keyline("dead-letters", "retry", strconv.FormatInt(id, 10), "--yes", "--reason", "the provider is back")
	}
	testdb.Eventually(t, func() bool {
		return scan[int](s, `select count(*) from keyline.dead_letters where status = 'delivered'`) == 2
	}, "both to be delivered again")

	traceparent := strings.Split(scan[string](s, "select headers ->> 'traceparent' from keyline.events where id::text = $1", event), "-")
	traceID, appendID := traceparent[1], traceparent[2]
	spans := s.whole(traceID)
	s.checkTrace(spans, appendID, event)
	s.checkLinked(event, traceID, appendID)

	all, err := s.jaeger.Trace(t.Context(), "0af7651916cd43dd8448eb211c80319c")
	if err != nil || len(all) > 0 {
		t.Errorf("the trace that nobody wanted has %d spans, %v", len(all), err)
	}
	found, err := s.jaeger.Find(t.Context(), jaeger.Search{Service: "crm-worker", Operation: "process notification",
		From: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour), Limit: 1000}) //nolint:forbidigo // Jaeger's clock is the machine's
	if err != nil {
		t.Fatal(err)
	}
	runs := of(found, named("process notification"))
	if len(runs) != 5 {
		t.Errorf("Jaeger has %d runs of notification, want 5: one event's four and its replay", len(runs))
	}
	for _, r := range runs {
		if r.Attributes["messaging.message.id"] != event {
			t.Errorf("a run of %s is traced", r.Attributes["messaging.message.id"])
		}
	}
	for _, r := range found {
		if strings.Contains(r.Attributes["db.query.text"], "mailboxes") && r.ParentID == "" {
			t.Errorf("a poll has a span: %s", r.Attributes["db.query.text"])
		}
	}
}

// whole waits until all of a trace has arrived.
func (s *stage) whole(id string) (spans []jaeger.Span) {
	s.Helper()
	testdb.Eventually(s, func() bool {
		var err error
		if spans, err = s.jaeger.Trace(s.Context(), id); err != nil {
			s.Fatal(err)
		}
		for _, name := range crmConsumers {
			if len(of(spans, named("process "+name))) == 0 {
				return false
			}
		}
		return len(of(spans, func(s jaeger.Span) bool { return s.Kind == "server" })) == 1
	}, "the trace to arrive")
	return spans
}

// checkTrace checks the trace of the append: request, append, and each consumer's first run with its SQL.
func (s *stage) checkTrace(spans []jaeger.Span, appendID, event string) {
	s.Helper()
	request := of(spans, named("POST /activities"))
	if len(request) != 1 || request[0].ParentID != "" || request[0].Kind != "server" || request[0].Service != "crm-api" {
		s.Fatalf("requests: %+v", request)
	}
	appended := of(spans, named("append activity.created"))
	if len(appended) != 1 || appended[0].SpanID != appendID || appended[0].ParentID != request[0].SpanID || appended[0].Kind != "producer" {
		s.Fatalf("appends: %+v", appended)
	}
	if sql := sqlBelow(spans, appended[0].SpanID); !strings.HasPrefix(sql, "SELECT") {
		s.Errorf("SQL of the append and what follows: %s", sql)
	}
	if sql := sqlBelow(spans, request[0].SpanID); !strings.Contains(sql, "INSERT") || !strings.Contains(sql, "COMMIT") {
		s.Errorf("SQL of the request: %s", sql)
	}
	wantSQL := map[string][]string{ // HandleTx's begin, what the handler does, its checkpoint, commit
		"timeline": {"BEGIN", "INSERT", "WITH", "COMMIT"}, "calendar": {"BEGIN", "INSERT", "WITH", "COMMIT"},
		"dashboard": {"WITH"}, "notification": {"INSERT"},
	}
	for _, name := range crmConsumers {
		runs := of(spans, named("process "+name))
		if len(runs) != 1 {
			s.Errorf("%s: %d runs in the append's trace", name, len(runs))
			continue
		}
		run := runs[0]
		if run.ParentID != appendID || run.Kind != "consumer" || run.Service != "crm-worker" || len(run.Links) != 1 || run.Links[0].SpanID != appendID {
			s.Errorf("%s: parent %s, kind %s, service %s, links %v", name, run.ParentID, run.Kind, run.Service, run.Links)
		}
		outcome := "completed"
		if name == "notification" {
			outcome = "retry"
		}
		for key, want := range map[string]string{
			"messaging.system": "keyline", "messaging.operation.type": "process", "messaging.consumer.group.name": name, "messaging.message.id": event,
			"messaging.destination.name": "activity", "keyline.tenant": "acme", "keyline.event.seq": "1", "keyline.event.type": "activity.created",
			"keyline.delivery.attempt": "1", "keyline.delivery.mode": "live", "keyline.delivery.outcome": outcome,
		} {
			if got := run.Attributes[key]; got != want {
				s.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
		sql := sqlBelow(spans, run.SpanID)
		for _, word := range wantSQL[name] {
			if !slices.Contains(strings.Fields(sql), word) {
				s.Errorf("%s: no %s in its SQL: %s", name, word, sql)
			}
		}
		if run.Error != (outcome == "retry") {
			s.Errorf("%s: error is %v", name, run.Error)
		}
	}
}

// tracedEvent is what `keyline trace --json` prints.
type tracedEvent struct {
	Consumers []struct {
		Consumer, State string
		Failures        []struct{ Attempt int }
	}
	Traces []struct {
		TraceID string `json:"trace_id"`
		Linked  bool
		Spans   []struct {
			Name     string
			ParentID string `json:"parent_id"`
			Error    bool
			Links    []jaeger.Link
			Attrs    map[string]string `json:"attributes"`
		}
	}
	Capped bool
}

// checkLinked checks the roots of the retries and of the replay, as `keyline trace` finds them.
func (s *stage) checkLinked(event, traceID, appendID string) {
	s.Helper()
	var v tracedEvent
	testdb.Eventually(s, func() bool {
		v = tracedEvent{}
		if err := json.Unmarshal(s.keyline("trace", event, "--jaeger", s.query, "--json"), &v); err != nil {
			s.Fatal(err)
		}
		return len(v.Traces) == 5
	}, "the linked traces to arrive")
	if v.Traces[0].Linked || v.Traces[0].TraceID != traceID || v.Capped {
		s.Errorf("first: linked %v, %s; capped %v", v.Traces[0].Linked, v.Traces[0].TraceID, v.Capped)
	}
	for i, trace := range v.Traces[1:] {
		root := trace.Spans[0]
		if !trace.Linked || root.Name != "process notification" || root.ParentID != "" || len(root.Links) != 1 || root.Links[0] != (jaeger.Link{TraceID: traceID, SpanID: appendID}) {
			s.Errorf("%d: %+v", i, root)
		}
		want := map[string]string{"keyline.delivery.attempt": strconv.Itoa(i + 2), "keyline.delivery.mode": "live", "keyline.delivery.outcome": "retry"}
		if i == 3 {
			want = map[string]string{"keyline.delivery.attempt": "5", "keyline.delivery.mode": "replay", "keyline.delivery.outcome": "completed", "keyline.delivery.redelivered": "true"}
		}
		for key, value := range want {
			if got := root.Attrs[key]; got != value {
				s.Errorf("%d: %s is %q, want %q", i, key, got, value)
			}
		}
		if root.Error != (i < 3) || len(trace.Spans) < 2 {
			s.Errorf("%d: error %v, %d spans", i, root.Error, len(trace.Spans))
		}
	}
	for _, c := range v.Consumers {
		if c.Consumer == "notification" && (c.State != "completed" || len(c.Failures) != 4) {
			s.Errorf("the database says of notification: %+v", c)
		}
	}
	text := string(s.keyline("trace", event, "--jaeger", s.query))
	for _, want := range []string{"POST /activities", "  append activity.created", "    process timeline", "run 5 completed replay", "linked trace", "the provider is back", "━"} {
		if !strings.Contains(text, want) {
			s.Errorf("the terminal's waterfall lacks %q", want)
		}
	}
	s.Logf("%s", text)
}
