// Package crmtest sets the application up for tests: a database of its own with
// both schemas, a service, workers.
package crmtest

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/fakeprovider"
	"github.com/keylinehq/keyline/internal/testdb"
)

// App is the application on a database of its own.
type App struct {
	*testdb.DB
	Pool     *pgxpool.Pool
	Client   *keyline.Client
	Service  *crm.Service
	Provider *fakeprovider.Provider

	t testing.TB
}

// New sets everything up but workers.
func New(t testing.TB) *App {
	t.Helper()
	db := testdb.New(t)
	a := &App{DB: db, Pool: db.Pool(), t: t}
	a.must(crm.Migrate(t.Context(), db.Connect()))
	var err error
	a.Client, err = crm.NewClient()
	a.must(err)
	a.must(a.Client.RegisterEventTypes(t.Context(), a.Pool))
	a.Service = crm.NewService(a.Pool, a.Client)
	a.Provider, err = fakeprovider.New(t.Context(), a.Pool)
	a.must(err)
	return a
}

func (a *App) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// Consumers are the application's, with short pauses between runs, and without
// circuit breakers, which make all wait where a test lets many fail.
func (a *App) Consumers() []keyline.Consumer {
	list := crm.Consumers(crm.Deps{DB: a.Pool, Provider: a.Provider})
	for i := range list {
		list[i].Retry = keyline.RetryPolicy{Delays: []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond}}
		list[i].Breaker.Disabled = true
	}
	return list
}

// Without leaves out consumers.
func Without(list []keyline.Consumer, names ...string) []keyline.Consumer {
	return slices.DeleteFunc(slices.Clone(list), func(c keyline.Consumer) bool { return slices.Contains(names, c.Name) })
}

// Start starts a worker that stops with the test, or before by the returned function.
func (a *App) Start(cfg keyline.Config, consumers ...keyline.Consumer) (stop func()) {
	a.t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(a.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	w, err := keyline.NewWorker(a.Pool, cfg, consumers...)
	a.must(err)
	a.must(w.Start(a.t.Context()))
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := w.Stop(ctx); err != nil {
			a.t.Errorf("stop: %v", err)
		}
	}
	a.t.Cleanup(stop)
	return stop
}

// Settled waits until no record has work, nor will have any from the start of a
// consumer.
func (a *App) Settled() {
	a.t.Helper()
	testdb.Eventually(a.t, func() bool { return Get[bool](a, settled) }, "all records to settle")
}

const settled = `select not exists (select from keyline.mailboxes)
	and not exists (select from keyline.consumers where status = 'backfilling' or sweep is not null)`

// Get reads one value.
func Get[T any](a *App, sql string, args ...any) (v T) {
	a.t.Helper()
	a.must(a.Pool.QueryRow(a.t.Context(), sql, args...).Scan(&v))
	return v
}

// Exec runs statements.
func (a *App) Exec(sql string, args ...any) {
	a.t.Helper()
	_, err := a.Pool.Exec(a.t.Context(), sql, args...)
	a.must(err)
}

// State is everything that an operation could have written, as one text.
func (a *App) State() string {
	a.t.Helper()
	state := map[string]json.RawMessage{}
	for _, table := range []string{
		"crm.activities", "crm.internal_notes", "crm.audit_log", "crm.requests", "keyline.events", "keyline.records", "keyline.mailboxes",
	} {
		state[table] = Get[json.RawMessage](a, "select coalesce(jsonb_agg(to_jsonb(t) order by to_jsonb(t)), '[]') from "+table+" t")
	}
	text, err := json.MarshalIndent(state, "", " ")
	a.must(err)
	return string(text)
}

// Org is the organization that most tests work for.
const Org = "acme"

// By is a request of somebody at Org.
func By(actor string) crm.Request {
	return crm.Request{Organization: Org, Actor: actor, CorrelationID: "correlation", CausationID: "causation"}
}

// Ptr is for literals.
func Ptr[T any](v T) *T { return &v }

// Create makes an activity that is scheduled and has an owner.
func (a *App) Create() crm.Activity {
	a.t.Helper()
	activity, err := a.Service.Create(a.t.Context(), By("alice"), crm.NewActivity{
		Kind: "call", Subject: "Ask about the offer", Details: "they haggle", Account: "globex", Owner: Ptr("bob"),
		ScheduledAt: Ptr(time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)), Minutes: 45,
	})
	a.must(err)
	return activity
}

// Complete ends an activity.
func (a *App) Complete(id uuid.UUID) crm.Activity {
	a.t.Helper()
	activity, err := a.Service.Complete(a.t.Context(), By("alice"), id, "sold")
	a.must(err)
	return activity
}

// Events are an activity's events.
func (a *App) Events(id uuid.UUID) []keyline.Event {
	a.t.Helper()
	events, err := a.Client.Events(a.t.Context(), a.Pool, crm.Key(Org, id), 1, 0)
	a.must(err)
	return events
}
