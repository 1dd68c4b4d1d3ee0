package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/keylinehq/keyline/internal/freeport"
	"github.com/keylinehq/keyline/internal/testdb"
)

func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }

// freeAddr is an address at which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	port, err := freeport.Choose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return freeport.Addr(port)
}

// Promise (P9): migrate, then serve with a worker embedded: a request is
// answered and delivered, and the process ends when it is told to.
func TestServeWithAWorkerEmbedded(t *testing.T) {
	db := testdb.NewEmpty(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	for range 2 { // a second time changes nothing
		if err := run(t.Context(), log, []string{"migrate", "-database-url", db.URL}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	addr := freeAddr(t)
	go func() { ended <- run(ctx, log, []string{"serve", "-worker", "-database-url", db.URL, "-addr", addr}) }()

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	call := func(method, path, body string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Organization", "acme")
		r.Header.Set("X-Actor", "alice")
		answer, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	testdb.Eventually(t, func() bool { status, _ := call("GET", "/dashboard", ""); return status == http.StatusOK }, "the API to answer")
	if status, body := call("POST", "/activities", `{"kind": "call", "subject": "Hello"}`); status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	testdb.Eventually(t, func() bool {
		_, body := call("GET", "/dashboard", "")
		return strings.Contains(body, `"event_type":"activity.created","events":1`)
	}, "the embedded worker to deliver")
	transport.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// Promise: what is not understood says so, and starts nothing.
func TestTheCommandLineSaysWhatIsWrong(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, args := range [][]string{nil, {"dance"}, {"serve", "-port", "1"}, {"worker", "now"}} {
		if err := run(t.Context(), log, args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
	db := testdb.NewEmpty(t)
	for _, command := range []string{"serve", "worker"} {
		if err := run(t.Context(), log, []string{command, "-database-url", db.URL}); err == nil || !strings.Contains(err.Error(), "migrate") {
			t.Errorf("%s without the schema: %v", command, err)
		}
	}
}
