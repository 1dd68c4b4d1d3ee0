package keyline_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// ask asks a worker's handler, and reads what it says of its readiness.
func ask(t *testing.T, w *keyline.Worker, path string) (code int, r keyline.Readiness) {
	t.Helper()
	answer := httptest.NewRecorder()
	w.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	if err := json.Unmarshal(answer.Body.Bytes(), &r); err != nil {
		t.Fatalf("%s: %v: %s", path, err, answer.Body)
	}
	if kind := answer.Header().Get("Content-Type"); kind != "application/json" {
		t.Errorf("%s is %s", path, kind)
	}
	return answer.Code, r
}

// awaitReadiness waits until readyz says that this is missing, and nothing else.
func awaitReadiness(t *testing.T, w *keyline.Worker, missing ...string) keyline.Readiness {
	t.Helper()
	var r keyline.Readiness
	testdb.Eventually(t, func() bool {
		var code int
		code, r = ask(t, w, "/readyz")
		if r.Ready != (code == http.StatusOK) || r.Ready != (len(r.Missing) == 0) {
			t.Errorf("%d: %+v", code, r)
		}
		if code, _ := ask(t, w, "/livez"); code != http.StatusOK {
			t.Errorf("livez: %d", code)
		}
		return slices.Equal(r.Missing, missing)
	}, "readyz misses %v", missing)
	return r
}

func TestReadinessSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	db, begun := testdb.New(t), make(chan struct{}, 1)
	w := must(keyline.NewWorker(db.Pool(), keyline.Config{Name: "w1", Lease: shortLease, ShutdownGrace: time.Hour}, blocking("c", begun)))(t)
	if r := awaitReadiness(t, w, "database", "lease", "listening"); r.State != "starting" || r.Name != "w1" {
		t.Errorf("before its start: %+v", r)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { // its handler ends when it is cancelled, and its grace is an hour
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel()
		if _, err := w.Stop(ctx); err != nil {
			t.Error(err)
		}
	}()
	if r := awaitReadiness(t, w); r.State != "running" || r.Worker != 1 || len(r.Checks) != 4 {
		t.Errorf("ready: %+v", r)
	}
	appendN(t, db, "thing:1", 1)
	<-begun
	exec(t, db.Pool(), "update keyline.workers set drain_at = clock_timestamp()")
	if r := awaitReadiness(t, w, "draining"); r.Worker != 1 {
		t.Errorf("draining: %+v", r)
	}
}

func TestReadinessAfterAnOutageOfTheDatabase(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	w := startWorker(t, db, keyline.Config{Lease: shortLease}, recording(s, "c"))
	awaitReadiness(t, w)
	admin := testdb.NewEmpty(t).Connect()
	exec(t, admin, "alter database "+db.Pool().Config().ConnConfig.Database+" allow_connections false")
	exec(t, admin, "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", db.Pool().Config().ConnConfig.Database)
	var r keyline.Readiness
	testdb.Eventually(t, func() bool {
		_, r = ask(t, w, "/readyz")
		return slices.Contains(r.Missing, "database") && slices.Contains(r.Missing, "lease")
	}, "database and lease are missing")
	for _, c := range r.Checks {
		if strings.Contains(c.Detail, db.Pool().Config().ConnConfig.Database) {
			t.Errorf("it names the database: %+v", c)
		}
	}
	exec(t, admin, "alter database "+db.Pool().Config().ConnConfig.Database+" allow_connections true")
	if r := awaitReadiness(t, w); r.Worker < 2 {
		t.Errorf("it came back as %+v", r)
	}
}

func TestAStoppedWorkerIsAliveAndNotReady(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	w := startWorker(t, db, keyline.Config{}, recording(s, "c"))
	stop(t, w)
	code, r := ask(t, w, "/readyz")
	if code != http.StatusServiceUnavailable || r.State != "stopped" || !slices.Contains(r.Missing, "draining") {
		t.Errorf("%d %+v", code, r)
	}
	if code, r := ask(t, w, "/livez"); code != http.StatusOK || r.State != "stopped" {
		t.Errorf("%d %+v", code, r)
	}
	disabled := must(keyline.NewWorker(db.Pool(), keyline.Config{Disabled: true}, recording(s, "c")))(t)
	if err := disabled.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, r := ask(t, disabled, "/readyz"); code != http.StatusOK || r.State != "disabled" {
		t.Errorf("disabled: %d %+v", code, r)
	}
}

func TestHealthIsReadAndNothingElse(t *testing.T) {
	t.Parallel()
	w := must(keyline.NewWorker(testdb.New(t).Pool(), keyline.Config{}))(t)
	for line, want := range map[string]int{"HEAD /readyz": 503, "HEAD /livez": 200, "POST /readyz": 405, "DELETE /livez": 405,
		"GET /": 404, "GET /metrics": 404, "GET /debug/pprof/": 404, "GET /livez/x": 404} {
		method, path, _ := strings.Cut(line, " ")
		answer := httptest.NewRecorder()
		w.Handler().ServeHTTP(answer, httptest.NewRequest(method, path, nil))
		if answer.Code != want {
			t.Errorf("%s: %d, want %d", line, answer.Code, want)
		}
	}
}
