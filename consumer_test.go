package keyline

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
)

func handle(context.Context, *Delivery) error           { return nil }
func handleTx(context.Context, pgx.Tx, *Delivery) error { return nil }
func handleBatch(context.Context, []*Delivery) error    { return nil }
func good() Consumer {
	return Consumer{Name: "timeline", Types: []string{"activity.*"}, Effect: None(), Handle: handle}
}
func changed(change func(*Consumer)) Consumer { c := good(); change(&c); return c }

func TestAConsumersErrorsNameTheField(t *testing.T) {
	t.Parallel()
	nan, over := math.NaN(), 1.5
	for _, tc := range []struct {
		field  string
		change func(*Consumer)
	}{
		{"Name", func(c *Consumer) { c.Name = "" }},
		{"Name", func(c *Consumer) { c.Name = "time line" }},
		{"Name", func(c *Consumer) { c.Name = strings.Repeat("x", 101) }},
		{"PreviousNames", func(c *Consumer) { c.PreviousNames = []string{"a b"} }},
		{"PreviousNames", func(c *Consumer) { c.PreviousNames = []string{"timeline"} }},
		{"Revision", func(c *Consumer) { c.Revision = -1 }},
		{"Revision", func(c *Consumer) { c.Revision = math.MaxInt32 + 1 }},
		{"Types", func(c *Consumer) { c.Types = nil }},
		{"Types", func(c *Consumer) { c.Types = []string{"a", ""} }},
		{"Types", func(c *Consumer) { c.Types = []string{"a\x00"} }},
		{"Types", func(c *Consumer) { c.Types = []string{strings.Repeat("x", 256)} }},
		{"Versions", func(c *Consumer) { c.Versions = []int{} }},
		{"Versions", func(c *Consumer) { c.Versions = []int{0} }},
		{"OnUnsupported", func(c *Consumer) { c.OnUnsupported = "ignore" }},
		{"Start", func(c *Consumer) { c.Start = Start{Kind: "tomorrow"} }},
		{"Start", func(c *Consumer) { c.Start = Start{Kind: StartAt} }},
		{"Start", func(c *Consumer) { c.Start = Start{Time: time.Unix(1, 0)} }},
		{"Effect", func(c *Consumer) { c.Effect = Effect{} }},
		{"CatchUp", func(c *Consumer) { c.Effect, c.Start = External("dedup"), Beginning() }},
		{"CatchUp", func(c *Consumer) { c.Effect, c.Start = External("dedup"), At(time.Unix(1, 0)) }},
		{"Effect", func(c *Consumer) { c.Effect = Effect{Class: "network"} }},
		{"Effect", func(c *Consumer) { c.Effect = External("  ") }},
		{"Effect", func(c *Consumer) { c.Effect = External("a\x00") }},
		{"Effect", func(c *Consumer) { c.Handle, c.HandleTx = nil, handleTx }},
		{"Effect", func(c *Consumer) { c.Handle, c.HandleTx, c.Effect = nil, handleTx, External("dedup") }},
		{"OnDead", func(c *Consumer) { c.OnDead = "stop" }},
		{"Scope", func(c *Consumer) { c.Scope = "some" }},
		{"Retry.Delays", func(c *Consumer) { c.Retry.Delays = []time.Duration{-1} }},
		{"Retry.Delays", func(c *Consumer) { c.Retry.Delays = []time.Duration{math.MaxInt64} }},
		{"Retry.Delays", func(c *Consumer) { c.Retry.Delays = make([]time.Duration, 1001) }},
		{"Retry.Jitter", func(c *Consumer) { c.Retry.Jitter = &over }},
		{"Retry.Jitter", func(c *Consumer) { c.Retry.Jitter = &nan }},
		{"Breaker.Threshold", func(c *Consumer) { c.Breaker.Threshold = nan }},
		{"Breaker.MinRuns", func(c *Consumer) { c.Breaker.MinRuns = -1 }},
		{"Breaker.Period", func(c *Consumer) { c.Breaker.Period = -1 }},
		{"Breaker.CoolDown", func(c *Consumer) { c.Breaker.CoolDown = -1 }},
		{"Window", func(c *Consumer) { c.Window = -1 }},
		{"Window", func(c *Consumer) { c.Handle, c.HandleBatch, c.BatchSize, c.Window = nil, handleBatch, 10, 9 }},
		{"BatchSize", func(c *Consumer) { c.BatchSize = 10 }},
		{"BatchSize", func(c *Consumer) { c.Handle, c.HandleBatch, c.BatchSize = nil, handleBatch, -1 }},
		{"BatchSize", func(c *Consumer) { c.Handle, c.HandleBatch, c.BatchSize = nil, handleBatch, maxWindow+1 }},
		{"BatchSize", func(c *Consumer) { c.Handle, c.HandleBatch, c.BatchSize = nil, handleBatch, math.MaxInt }},
		{"Window", func(c *Consumer) { c.Window = maxWindow + 1 }},
		{"MaxInFlight", func(c *Consumer) { c.MaxInFlight = -1 }},
		{"Timeout", func(c *Consumer) { c.Timeout = -1 }},
		{"Handle", func(c *Consumer) { c.Handle = nil }},
		{"HandleTx", func(c *Consumer) { c.HandleTx = handleTx }},
		{"HandleBatch", func(c *Consumer) { c.HandleBatch = handleBatch }},
		{"Handle", func(c *Consumer) { c.ContractOnly = true }},
		{"Excluded", func(c *Consumer) { c.Handle, c.ContractOnly, c.Excluded = nil, true, "not yet" }},
	} {
		c := changed(tc.change)
		err := c.validate()
		want := "timeline." + tc.field
		if c.Name != "timeline" {
			want = c.Name + "." + tc.field
			if c.Name == "" {
				want = "Consumer." + tc.field
			}
		}
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrInvalid) || e.Field != want {
			t.Errorf("%+v: error %v, want one about %s", c, err, want)
		}
	}
}

// Durations that are to mean for ever stay such that they can be added to a time.
func TestAWorkersDurationsAreBounded(t *testing.T) {
	t.Parallel()
	c := Config{PollInterval: math.MaxInt64, Linger: math.MaxInt64, Lease: math.MaxInt64, StaleThreshold: math.MaxInt64,
		ShutdownGrace: math.MaxInt64, FlushDelay: math.MaxInt64}
	c.setDefaults()
	if err := c.validate(); err != nil {
		t.Error(err)
	}
	for field, d := range map[string]time.Duration{"PollInterval": c.PollInterval, "Linger": c.Linger, "Lease": c.Lease,
		"StaleThreshold": c.StaleThreshold, "ShutdownGrace": c.ShutdownGrace, "FlushDelay": c.FlushDelay} {
		if d != maxRetryDelay {
			t.Errorf("%s is %s", field, d)
		}
	}
}

func TestGoodConsumers(t *testing.T) {
	t.Parallel()
	zero := 0.0
	for _, c := range []Consumer{
		good(),
		changed(func(c *Consumer) { c.Name = "crm.timeline:v2_x-y" }),
		changed(func(c *Consumer) { c.Types = []string{"*"} }),
		changed(func(c *Consumer) { c.Handle, c.HandleTx, c.Effect = nil, handleTx, Database() }),
		changed(func(c *Consumer) { c.Handle, c.HandleBatch, c.BatchSize = nil, handleBatch, 10 }),
		changed(func(c *Consumer) { c.Handle, c.HandleBatch, c.BatchSize, c.Window = nil, handleBatch, 10, 10 }),
		changed(func(c *Consumer) { c.Handle, c.HandleBatch, c.BatchSize = nil, handleBatch, maxWindow }),
		changed(func(c *Consumer) { c.Window = maxWindow }),
		changed(func(c *Consumer) { c.Handle, c.ContractOnly = nil, true }),
		changed(func(c *Consumer) { c.Effect = External("the provider drops a repeated key") }),
		changed(func(c *Consumer) { c.Effect, c.Start, c.CatchUp = External("dedup"), Beginning(), true }),
		changed(func(c *Consumer) { c.Effect, c.Excluded = External(""), "the provider has no idempotency key yet" }),
		changed(func(c *Consumer) { c.Retry = RetryPolicy{Delays: []time.Duration{}, Jitter: &zero} }),
		changed(func(c *Consumer) { c.Start = At(time.Unix(1e9, 0)) }),
	} {
		if err := c.validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestConsumersShareNoName(t *testing.T) {
	t.Parallel()
	named := func(name string, previous ...string) Consumer {
		return changed(func(c *Consumer) { c.Name, c.PreviousNames = name, previous })
	}
	if err := validateConsumers([]Consumer{named("a"), named("b", "c"), named("d", "e")}); err != nil {
		t.Error(err)
	}
	for _, list := range [][]Consumer{
		{named("a"), named("a")}, {named("a"), named("b", "a")}, {named("b", "a"), named("a")}, {named("a", "x"), named("b", "x")},
		{named("a", "x", "x")}, {named("a"), named("")},
	} {
		if err := validateConsumers(list); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", list, err)
		}
	}
}

func TestToCoreFillsInTheDefaults(t *testing.T) {
	t.Parallel()
	jitter := 0.10
	want := core.Consumer{
		Name: "timeline", Revision: 1, Types: []string{"activity.*"}, OnUnsupported: SkipUnsupported, Start: Now(), Effect: None(),
		Retry:  RetryPolicy{Delays: []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute}, Jitter: &jitter},
		OnDead: Advance, Scope: OneForOne, Hosted: true, Window: 1, BatchSize: 1,
	}
	if diff := cmp.Diff(want, good().toCore(), cmpopts.IgnoreUnexported(core.Consumer{})); diff != "" {
		t.Errorf("defaults (-want +got)\n%s", diff)
	}
}

// TestToCoreDropsNoField sets every field of core.Consumer that a definition
// decides to something that is not its zero value.
func TestToCoreDropsNoField(t *testing.T) {
	t.Parallel()
	c := Consumer{
		Name: "mailer", Revision: 3, Types: []string{"b", "a", "b"}, Versions: []int{2, 1, 2}, OnUnsupported: WaitUnsupported,
		Start: Beginning(), Effect: Database(), Retry: RetryPolicy{Delays: []time.Duration{time.Nanosecond, 1500 * time.Microsecond}},
		OnDead: Park, Scope: AllForOne, Internal: true, Window: 7, HandleTx: handleTx,
	}
	batch := Consumer{Name: "b", Types: []string{"*"}, Effect: External(""), Excluded: "why", HandleBatch: handleBatch}
	got, gotBatch := c.toCore(), batch.toCore()
	if got.Name != "mailer" || got.Revision != 3 || !cmp.Equal(got.Types, []string{"a", "b"}) || !cmp.Equal(got.Versions, []int{1, 2}) ||
		got.OnUnsupported != WaitUnsupported || got.Start != Beginning() || got.Effect != Database() || got.OnDead != Park || got.Scope != AllForOne ||
		!got.Internal || got.Window != 7 || !got.Transactional || !got.Hosted || got.ContractOnly {
		t.Errorf("%+v became %+v", c, got)
	}
	if want := []time.Duration{time.Millisecond, 2 * time.Millisecond}; !cmp.Equal(got.Retry.Delays, want) || *got.Retry.Jitter != DefaultJitter {
		t.Errorf("retry became %v ± %v, want %v: the database keeps milliseconds", got.Retry.Delays, *got.Retry.Jitter, want)
	}
	if gotBatch.BatchSize != DefaultBatchSize || gotBatch.Window != DefaultBatchSize || gotBatch.Hosted || gotBatch.Effect.Note != "excluded: why" {
		t.Errorf("%+v became %+v", batch, gotBatch)
	}
	if one := (Consumer{Retry: RetryPolicy{Delays: []time.Duration{}}}).toCore(); len(one.Retry.Delays) != 0 {
		t.Errorf("an empty list of delays became %v, want one run", one.Retry.Delays)
	}
	// A new field of core.Consumer is to be thought of here and in toCore.
	if n := reflect.TypeFor[core.Consumer]().NumField(); n != 19 {
		t.Errorf("core.Consumer has %d fields, this test was written for 19", n)
	}
}

func TestTypedDecodesOrIsPermanent(t *testing.T) {
	t.Parallel()
	type completed struct {
		By      string
		Minutes int
	}
	var got completed
	plain := Typed(func(_ context.Context, _ *Delivery, c completed) error { got = c; return nil })
	inTx := TypedTx(func(_ context.Context, _ pgx.Tx, _ *Delivery, c completed) error { got = c; return nil })
	deliver := func(payload string) error {
		d := &Delivery{Event: Event{Payload: json.RawMessage(payload)}}
		err, errTx := plain(t.Context(), d), inTx(t.Context(), nil, d)
		if (err == nil) != (errTx == nil) || err != nil && err.Error() != errTx.Error() {
			t.Errorf("%s: Typed %v, TypedTx %v", payload, err, errTx)
		}
		return err
	}
	if err := deliver(`{"By":"u1","Minutes":5}`); err != nil || got != (completed{"u1", 5}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for payload, says := range map[string]string{
		`{"Minutes":"s3cr3t"}`:   `string at "Minutes" where int belongs`,
		`{"Minutes":987654.321}`: `number at "Minutes" where int belongs`,
		`["s3cr3t"]`:             `array at "" where`,
		`{`:                      "does not decode into keyline.completed",
	} {
		err := deliver(payload)
		if v, _, _ := Judge(err); v != VerdictPermanent || ErrorCode(err) != CodeIncompatiblePayload {
			t.Errorf("%s: %v, want a permanent error with the code %s", payload, err, CodeIncompatiblePayload)
			continue
		}
		if text := err.Error(); !strings.Contains(text, says) || strings.Contains(text, "s3cr3t") || strings.Contains(text, "987654") {
			t.Errorf("%s: %s, want %q and nothing of the payload", payload, text, says)
		}
	}
}
