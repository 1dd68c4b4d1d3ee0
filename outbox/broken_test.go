package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/outbox"
)

// broken is an act on an outbox that is to be broken off at each of its steps.
type broken struct {
	name   string
	steps  []string
	ready  func(*rig) // makes what the act begins from
	act    func(context.Context, *outbox.Outbox) error
	audit  string
	before outbox.State
	after  outbox.State
}

func brokenActs() []broken {
	return []broken{
		{
			"prepare", []string{"table locked", "prepared"}, func(*rig) {},
			func(ctx context.Context, o *outbox.Outbox) error {
				_, err := o.Prepare(ctx, settings(), by, outbox.PrepareOptions{Patience: brisk})
				return err
			}, "outbox_prepared", outbox.StateUntouched, outbox.StatePrepared,
		},
		{
			"guard", []string{"table locked", "prepared"}, func(r *rig) { r.prepare(settings(), false) },
			func(ctx context.Context, o *outbox.Outbox) error {
				_, err := o.Prepare(ctx, settings(), by, outbox.PrepareOptions{Guard: true, Patience: brisk})
				return err
			}, "outbox_prepared", outbox.StatePrepared, outbox.StateGuarded,
		},
		{
			"backfill", []string{"drainers locked", "filled"}, func(r *rig) {
				r.prepare(settings(), true)
				r.exec(`update outbox set keyline_key = null`)
			},
			func(ctx context.Context, o *outbox.Outbox) error {
				_, err := o.Backfill(ctx, by, outbox.BackfillOptions{Chunk: 10, Patience: brisk})
				return err
			}, "outbox_backfilled", outbox.StateGuarded, outbox.StateGuarded,
		},
		{
			"cutover", []string{"drainers locked", "table locked", "appended", "marked", "forwarding"}, func(r *rig) { r.prepare(settings(), true) },
			func(ctx context.Context, o *outbox.Outbox) error {
				_, err := o.Cutover(ctx, by, outbox.CutoverOptions{Patience: brisk})
				return err
			}, "outbox_cutover", outbox.StateGuarded, outbox.StateForwarding,
		},
		{
			"back", []string{"drainers locked", "table locked", "back"}, func(r *rig) {
				r.prepare(settings(), true)
				r.cutover()
				r.exec(`update keyline.records set cursor = head; delete from keyline.mailboxes`) // all is delivered
			},
			func(ctx context.Context, o *outbox.Outbox) error {
				_, err := o.Back(ctx, by, outbox.BackOptions{Patience: brisk})
				return err
			}, "outbox_back", outbox.StateForwarding, outbox.StateGuarded,
		},
	}
}

// all is whatever an act on the outbox may change.
const all = `select concat_ws('|',
	(select string_agg(o::text, ',' order by id) from outbox o),
	(select string_agg(a.attname, ',' order by a.attnum) from pg_attribute a where a.attrelid = 'outbox'::regclass and a.attnum > 0),
	(select string_agg(t.tgname, ',' order by t.tgname) from pg_trigger t where t.tgrelid = 'outbox'::regclass),
	(select string_agg(p.proname, ',' order by p.proname) from pg_proc p where p.proname like 'outbox\_keyline\_%'),
	(select count(*) from keyline.events), (select count(*) from keyline.mailboxes), (select string_agg(a::text, ',' order by id) from keyline.audit a))`

// Promise: each act on an outbox that is broken off, wherever, has changed nothing; said again it is done, once, and the audit says so.
func TestAnActThatIsKilledAnywhereChangesNothingAndIsSaidAgain(t *testing.T) {
	for _, b := range brokenActs() {
		t.Run(b.name, func(t *testing.T) {
			r := newRig(t, typical)
			for n := range 3 {
				r.exec(oldInsert, "7", n+1)
			}
			b.ready(r)
			want(t, "state", r.state(), b.before)
			audits := r.number(`select count(*) from keyline.audit where action = $1`, b.audit)
			was := r.text(all)
			for _, step := range b.steps {
				conn := r.conn()
				o, err := outbox.Open(conn, "", "outbox")
				if err != nil {
					t.Fatal(err)
				}
				met := false
				o.OnReached(func(s string) {
					if s == step {
						met = true
						r.exec(`select pg_terminate_backend($1, 10000)`, conn.PgConn().PID())
					}
				})
				if err := b.act(r.Context(), o); !errors.Is(err, keyline.ErrUnavailable) || !met {
					t.Fatalf("killed when %s: %v, met %v", step, err, met)
				}
				want(t, "all there is, killed when "+step, r.text(all), was)
			}
			if err := b.act(r.Context(), r.open("outbox")); err != nil {
				t.Fatalf("said again: %v", err)
			}
			want(t, "state", r.state(), b.after)
			want(t, "audits", r.number(`select count(*) from keyline.audit where action = $1`, b.audit), audits+1)
			want(t, "rows without a key", r.number(`select count(*) from outbox where keyline_key is null`), map[bool]int64{true: 3}[b.name == "prepare" || b.name == "guard"])
			switch err := b.act(r.Context(), r.open("outbox")); {
			case err != nil && !errors.Is(err, keyline.ErrConflict):
				t.Fatalf("once more: %v", err)
			default:
				want(t, "audits after once more", r.number(`select count(*) from keyline.audit where action = $1`, b.audit), audits+1)
			}
		})
	}
}

// Promise: a consumer that begins with older events, and has not been told yet with which, keeps the table from going back: what it
// has not got is counted nowhere.
func TestBackWaitsForAConsumerThatIsBeingBuilt(t *testing.T) {
	r := prepared(t)
	w, err := keyline.NewWorker(r.db.NewPool(nil), keyline.Config{}, keyline.Consumer{
		Name: "anew", Types: []string{"*"}, Start: keyline.Beginning(), Effect: keyline.None(),
		Handle: func(context.Context, *keyline.Delivery) error { return nil },
	})
	if err == nil {
		_, err = w.Drain(r.Context(), keyline.DrainOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.exec(oldInsert, "7", 1)
	r.cutover()
	r.exec(`update keyline.consumers set status = 'backfilling', sweep = 'backfill', sweep_record = 0`)
	r.exec(`update keyline.records set cursor = head; delete from keyline.mailboxes`) // all others have had it
	_, err = r.open("outbox").Back(r.Context(), by, outbox.BackOptions{Settle: time.Millisecond, Patience: impatient})
	if !errors.Is(err, keyline.ErrUnavailable) || !strings.Contains(err.Error(), "consumer anew begins") {
		t.Fatalf("beside it: %v", err)
	}
	want(t, "state", r.state(), outbox.StateForwarding)
	r.exec(`update keyline.consumers set status = 'active', sweep = null`)
	r.back(false)
}

// Promise: who freezes in the middle of an act holds writers up for a moment only; nothing is changed then, and whoever comes to again is told.
func TestAnActThatFreezesAnywhereIsEndedAndWritersGoOn(t *testing.T) {
	for _, b := range brokenActs() {
		for _, step := range b.steps {
			t.Run(b.name+" when "+step, func(t *testing.T) {
				r := newRig(t, typical)
				r.exec(oldInsert, "7", 1)
				b.ready(r)
				o := r.open("outbox")
				o.Believe(2 * time.Second)
				wrote := make(chan error, 1)
				writer := r.conn()
				met := false
				o.OnReached(func(s string) {
					if met || s != step {
						return
					}
					met = true
					go func() {
						_, err := writer.Exec(r.Context(), oldInsert, "7", 2)
						if err == nil { // and the drainers' lock is free
							_, err = writer.Exec(r.Context(), `select pg_advisory_xact_lock(hashtextextended('keyline outbox change ' || 'outbox'::regclass::oid, 0))`)
						}
						wrote <- err
					}()
					timer := clock.Real().NewTimer(time.Minute)
					defer timer.Stop()
					select {
					case err := <-wrote:
						if err != nil {
							t.Error(err)
						}
					case <-timer.C():
						t.Error("a writer still waits for who is frozen")
					}
				})
				if err := b.act(r.Context(), o); !errors.Is(err, keyline.ErrUnavailable) || !met {
					t.Fatalf("%v, met %v", err, met)
				}
				want(t, "state", r.state(), b.before)
				want(t, "rows", fmt.Sprint(r.texts(`select payload->>'n' from outbox order by id`)), "[1 2]")
			})
		}
	}
}
