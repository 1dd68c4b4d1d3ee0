package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/api"
	"github.com/keylinehq/keyline/internal/testdb"
)

// The tenants of an installation in a test, and what nobody may read by accident.
const (
	mine     = "acme"
	others   = "otherstenant"
	internal = "secret.thing" // an event type
	marked   = "PAYLOADMARK"
	password = "hunter2"
)

// rig is an installation of two tenants, each with a dead letter and a head in backoff, behind the API.
type rig struct {
	*testing.T
	db      *testdb.DB
	gate    *keyline.Gate
	handler *api.Handler
	admin   keyline.Operator
	worker  *keyline.Worker
	dead    map[string]uuid.UUID // events, by tenant
	late    map[string]uuid.UUID
	secret  uuid.UUID         // an event of the internal type, of the tenant mine
	letters map[string]int64  // dead letters, by tenant
	tokens  map[string]string // secrets, by name
	numbers map[string]int64  // tokens, by name
}

func fails(name string, types []string, delays ...time.Duration) keyline.Consumer {
	return keyline.Consumer{
		Name: name, Types: types, Effect: keyline.None(), Internal: true, Retry: keyline.RetryPolicy{Delays: append([]time.Duration{}, delays...)},
		Handle: func(context.Context, *keyline.Delivery) error { return errors.New("not now") },
	}
}

func newRig(t *testing.T, cfg api.Config) *rig {
	t.Helper()
	r := &rig{T: t, db: testdb.New(t), dead: map[string]uuid.UUID{}, late: map[string]uuid.UUID{}, letters: map[string]int64{},
		tokens: map[string]string{}, numbers: map[string]int64{}}
	pool := r.db.Pool()
	r.admin = must(keyline.NewOperator(pool, keyline.OperatorConfig{Actor: "root", Role: keyline.RoleAdmin}))(t)
	client := must(keyline.NewClient(keyline.ClientConfig{EventTypes: []keyline.EventType{{Type: internal, Internal: true}}}))(t)
	if err := client.RegisterEventTypes(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	w := must(keyline.NewWorker(pool, keyline.Config{Name: "w", Lease: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)},
		fails("dies", []string{"dead", internal}), fails("waits", []string{"late"}, time.Hour)))(t)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.worker = w
	t.Cleanup(func() {
		if _, err := w.Stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	appended := func(tenant, eventType string) uuid.UUID {
		return must(client.Append(t.Context(), pool, keyline.NewEvent{Key: keyline.Key{Tenant: tenant, Record: "thing:1"}, Type: eventType,
			Payload: map[string]any{"note": marked, "deep": []any{map[string]any{"Pass_Word": password}}}}))(t).ID
	}
	for _, tenant := range []string{mine, others} {
		r.dead[tenant] = appended(tenant, "dead")
		r.late[tenant] = appended(tenant, "late")
	}
	r.secret = appended(mine, internal)
	r.await("three are dead", "select count(*) = 3 from keyline.dead_letters where status = 'open'")
	r.awaitBackoff()
	for tenant, event := range r.dead {
		list := must(r.admin.DeadLetters(t.Context(), keyline.DeadLetterFilter{Tenant: &tenant}))(t)
		for _, d := range list {
			if d.EventID == event {
				r.letters[tenant] = d.ID
			}
		}
	}
	for _, role := range []keyline.Role{keyline.RoleViewer, keyline.RoleOperator, keyline.RoleAdmin} {
		r.token(string(role), role, nil)
		r.token(mine+" "+string(role), role, ptr(mine))
	}
	r.gate = must(keyline.NewGate(pool, keyline.GateConfig{Redact: api.RedactFields("password")}))(t)
	if cfg.RequestsPerSecond == 0 {
		cfg.RequestsPerSecond, cfg.Burst = 1e6, 1e6
	}
	r.handler = must(api.New(r.gate, cfg))(t)
	t.Cleanup(func() {
		if err := r.handler.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

func (r *rig) token(name string, role keyline.Role, tenant *string) {
	r.Helper()
	issued := must(r.admin.CreateToken(r.Context(), keyline.NewToken{Name: name, Role: role, Tenant: tenant, ExpiresIn: time.Hour}, ""))(r.T)
	r.tokens[name], r.numbers[name] = issued.Secret, issued.ID
}

func (r *rig) awaitBackoff() {
	r.Helper()
	r.await("all wait", "select count(*) = 2 from keyline.checkpoints where state = 'backoff'")
}

// await waits until a query says yes.
func (r *rig) await(what, query string) {
	r.Helper()
	testdb.Eventually(r.T, func() bool {
		var yes bool
		if err := r.db.Pool().QueryRow(r.Context(), query).Scan(&yes); err != nil {
			r.Fatal(err)
		}
		return yes
	}, what)
}

// state is all that a refused request could have changed.
func (r *rig) state() string {
	r.Helper()
	var s string
	err := r.db.Pool().QueryRow(r.Context(), `select concat(
		(select count(*) from keyline.audit), ' ', (select count(*) from keyline.commands), ' ',
		(select string_agg(name || coalesce(revoked_by, ''), ',' order by id) from keyline.api_tokens), ' ',
		(select string_agg(name || status, ',' order by name) from keyline.consumers), ' ',
		(select string_agg(concat(status, drain_at), ',' order by id) from keyline.workers))`).Scan(&s)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// answer is what a request got.
type answer struct {
	code   int
	header http.Header
	body   string
	// undescribed says in what it is not as the description has it.
	undescribed error
}

// value is the body, which has to be JSON.
func (a answer) value(t testing.TB) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("no JSON object: %v: %s", err, a.body)
	}
	return v
}

var address atomic.Uint32

// ask asks with a token's secret; "": without one. A body is sent as JSON.
func ask(ctx context.Context, h http.Handler, secret, method, target, body string, headers ...string) answer {
	r := httptest.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	if method != http.MethodGet {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	// Each from an address of its own: TestWhoAsksTooMuchIsToldToWait is about those that share one.
	r.RemoteAddr = fmt.Sprintf("[fd00::%x]:1", address.Add(1))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	a := answer{code: w.Code, header: w.Header(), body: w.Body.String()}
	if r.URL.Path != "/livez" {
		a.undescribed = theDescription().holds(method, r.URL.EscapedPath(), a)
	}
	return a
}

// ask asks in the name of a token.
func (r *rig) ask(token, method, target, body string, headers ...string) answer {
	r.Helper()
	secret := r.tokens[token]
	if secret == "" && token != "" {
		r.Fatalf("no token %q", token)
	}
	a := ask(r.Context(), r.handler, secret, method, target, body, headers...)
	if a.undescribed != nil {
		r.Errorf("%s %s: %v", method, target, a.undescribed)
	}
	return a
}

// wantProblem wants a problem with a code.
func wantProblem(t testing.TB, a answer, status int, code string) {
	t.Helper()
	if a.undescribed != nil {
		t.Error(a.undescribed)
	}
	if a.code != status || a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %s, want %d: %s", a.code, a.header.Get("Content-Type"), status, a.body)
		return
	}
	v := a.value(t)
	if v["code"] != code || v["status"] != float64(status) || v["title"] != http.StatusText(status) {
		t.Errorf("problem %v, want the code %s", v, code)
	}
}

// stream is an open stream of changes.
type stream struct {
	*testing.T
	events chan [2]string // name and data
	end    context.CancelFunc
}

// stream opens a stream of changes.
func (r *rig) stream(server *httptest.Server, token string) *stream {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	request := must(http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/v1/changes", nil))(r.T)
	request.Header.Set("Authorization", "Bearer "+r.tokens[token])
	response := must(server.Client().Do(request))(r.T)
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" {
		r.Fatalf("%d %s", response.StatusCode, response.Header.Get("Content-Type"))
	}
	s := &stream{r.T, make(chan [2]string, 1000), cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.events)
		defer response.Body.Close()
		lines, name := bufio.NewScanner(io.Reader(response.Body)), ""
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if after, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				name = after
			}
			if after, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := theDescription().event(name, after); err != nil {
					r.Error(err)
				}
				s.events <- [2]string{name, after}
			}
		}
	}()
	r.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

// until reads events up to one of a name whose data has a text; those in front of it are returned too.
func (s *stream) until(name, text string) (seen []string) {
	s.Helper()
	for {
		e := s.next(text)
		if e[0] == "" {
			s.Fatalf("the stream ended without %s %q: %v", name, text, seen)
		}
		seen = append(seen, e[0]+" "+e[1])
		if e[0] == name && strings.Contains(e[1], text) {
			return seen
		}
	}
}

// next is the next event; "" is the end.
func (s *stream) next(waitingFor string) [2]string {
	s.Helper()
	select {
	case e := <-s.events:
		return e
	case <-time.After(time.Minute):
		s.Fatalf("nothing comes; waiting for %s", waitingFor)
		return [2]string{}
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ptr[T any](v T) *T { return &v }

func because(more string, args ...any) string {
	return `{"reason":"test"` + fmt.Sprintf(more, args...) + `}`
}

// raw asks with a request that is made as a test says.
func raw(t testing.TB, h http.Handler, method, target, body string, set func(*http.Request)) answer {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	set(r)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answer{code: w.Code, header: w.Header(), body: w.Body.String()}
}

func exec(t testing.TB, pool *pgxpool.Pool, text string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), text); err != nil {
		t.Fatal(err)
	}
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

type jsonText = json.RawMessage
