package store

import (
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
)

// refusing makes the database refuse to write a failure the first times, with
// these SQLSTATEs, whatever becomes of the transaction.
func (r *rig) refusing(states ...string) {
	r.Helper()
	r.exec("create sequence refusals minvalue 0 start 0")
	r.exec("create table refuse (n bigint, state text)")
	for i, state := range states {
		r.exec("insert into refuse values ($1, $2)", i, state)
	}
	r.exec(`create function refuse() returns trigger language plpgsql as $$
		declare code text := (select state from public.refuse where n = (select nextval('public.refusals')));
		begin
			if code is not null then
				raise exception 'refused' using errcode = code;
			end if;
			return new;
		end $$`)
	r.exec("create trigger refuse before insert on keyline.failures for each row execute function refuse()")
}

func TestAFlushThatIsRefusedForNowIsRepeatedAsItIs(t *testing.T) {
	for name, state := range map[string]string{
		"deadlock": "40P01", "serialization": "40001", "lock time-out": "55P03", "out of memory": "53200", "shutting down": "57P03", "read only": "25006",
		"no right": "42501", "no function": "42883", "a plan to be made anew": "0A000", "a time limit": "57014",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c := r.register(definition("c"))
			r.refusing(state, state)
			l := r.load(r.claimOne(r.append("r", "t", "t")))
			if res := r.flush1(everything(l, c)); res.Status != core.FlushKept || res.Rewritten {
				t.Errorf("%+v", res)
			}
			if n := r.written(); n != 6 {
				t.Errorf("%d rows", n)
			}
			if n := r.completed(); n != 3 {
				t.Errorf("3 completions are counted as %d", n)
			}
		})
	}
}

// Refused for what it says, then for now without it: it is not given up.
func TestACulpritThatIsRefusedForNowIsTriedAgain(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	r.refusing("22000", "40001")
	l := r.load(r.claimOne(r.append("r", "t", "t")))
	if res := r.flush1(everything(l, c)); res.Status != core.FlushKept {
		t.Errorf("%+v", res)
	}
	if n := r.written(); n != 6 {
		t.Errorf("%d rows", n)
	}
	if n := r.completed(); n != 3 {
		t.Errorf("3 completions are counted as %d", n)
	}
}

// Refused for what it says, then cancelled without it: likewise.
func TestACulpritThatIsCancelledIsTriedAgain(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	r.refusing("22000", "57014", "42501")
	l := r.load(r.claimOne(r.append("r", "t", "t")))
	if res := r.flush1(everything(l, c)); res.Status != core.FlushKept {
		t.Errorf("%+v", res)
	}
	if n := r.written(); n != 6 {
		t.Errorf("%d rows", n)
	}
}

// Its texts are not to blame. The claim ends in this process, and the record
// goes on from what the database has; the batch beside it is written.
func TestAnOutcomeThatCannotBeWrittenAtAllEndsItsClaimAlone(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	ids := r.appendTo("r", 5)
	var flushes []core.Flush
	for i, id := range ids {
		f := counted(r.claimOne(id), c)
		if i == 2 {
			f.Then = core.Keep
			f.Upserts = []core.Checkpoint{{Consumer: c, Seq: -1, State: core.Ready}} // refused by a constraint
		}
		flushes = append(flushes, f)
	}
	for i, wait := range r.together(flushes...) {
		want := core.FlushResult{Record: ids[i], Token: flushes[i].Token, Status: core.FlushGone, Head: 1}
		if i == 2 {
			want.Status, want.Head = core.FlushFenced, 0
		}
		if res := soon(r, wait, "a flush"); res != want {
			t.Errorf("record %d: %+v, want %+v", i, res, want)
		}
	}
	if n := r.completed(); n != 4 {
		t.Errorf("4 completions are counted as %d", n)
	}
	if b := r.box(ids[2]); b.claimedBy != r.me || b.cursor != 0 {
		t.Errorf("mailbox: %+v", b)
	}
	r.age()
	if n, err := r.HandBackOrphans(t.Context(), r.me, nil); n != 1 || err != nil {
		t.Error(n, err)
	}
}

func TestTextsOfCommandsAndDeadLetterRetriesCannotStopABatch(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r", "t", "t")))
	r.flush1(everything(l, c))
	dead := get[int64](r, "select id from keyline.dead_letters")
	cmd, err := r.Command(t.Context(), core.Command{Record: l.Record, Kind: core.CommandRetry, Actor: "op"}, "r")
	if err != nil {
		t.Fatal(err)
	}
	f := core.Flush{Record: l.Record, Token: l.Token, Head: 2, Cursor: 1,
		Applied: []core.AppliedCommand{{ID: cmd, Done: true, Detail: "\x00"}},
		DeadUpdates: []core.DeadUpdate{{DeadRetry: core.DeadRetry{ID: dead, Record: l.Record, Consumer: c, Seq: 1, Attempt: 2}, Status: core.DeadResolved,
			Actor: "\x00", Note: "\x00", At: r.clock.Now()}}}
	if res := r.flush1(f); res.Status != core.FlushKept || !res.Rewritten {
		t.Errorf("%+v", res)
	}
	if out, err := r.operate().Await(t.Context(), cmd); err != nil || !out.Done {
		t.Errorf("%+v, %v", out, err)
	}
	if status := get[string](r, "select status from keyline.dead_letters"); status != "resolved" {
		t.Errorf("the dead letter is %s", status)
	}
}

// Two flushes of different plans are of different registries; what was planned
// with the older one must not be written with the newer one's batch.
func TestFlushesOfTwoEpochsAreTwoBatches(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"))
	ids := r.appendTo("r", 3)
	epoch := r.epoch()
	gate := r.begin()
	r.in(gate, "select pg_advisory_xact_lock(keyline.barrier_key())")
	plug := r.send(core.Flush{Record: 2_000_000, Token: -1}, epoch)
	r.blocked(".flush(")
	var waits []<-chan core.FlushResult
	for i, id := range ids {
		waits = append(waits, r.send(counted(r.claimOne(id), c), epoch-int64(i%2)))
	}
	r.commit(gate)
	soon(r, plug, "the flush that held the committer up")
	for i, wait := range waits {
		want := core.FlushGone
		if i%2 == 1 {
			want = core.FlushEpoch
		}
		if res := soon(r, wait, "a flush"); res.Status != want {
			t.Errorf("%d: %+v", i, res)
		}
	}
	if n := r.completed(); n != 2 {
		t.Errorf("2 completions are counted as %d", n)
	}
}

// A database that does not answer cannot keep a process from ending.
func TestACloseWaitsOnlySoLongForTheDatabase(t *testing.T) {
	fake := clock.NewFake(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	r := newRig(t, func(c *Config) { c.Clock = fake })
	c := r.register(definition("c"))
	id := r.append("r")
	f := counted(r.claimOne(id), c)
	gate := r.begin()
	r.in(gate, "select pg_advisory_xact_lock(keyline.barrier_key())")
	wait := r.send(f, r.epoch())
	r.blocked(".flush(")
	timers := fake.Waiting() // what the flush's connection waits for
	closed := background(func() bool { r.Store.Close(); return true })
	if err := fake.BlockUntil(t.Context(), timers+1); err != nil { // Close has set its limit
		t.Fatal(err)
	}
	fake.Advance(stopGrace)
	if res := soon(r, wait, "an answer to the flush"); res.Status != core.FlushFenced {
		t.Errorf("%+v", res)
	}
	soon(r, closed, "the end of Close")
	r.commit(gate)
	if b := r.box(id); b.claimedBy != r.me {
		t.Errorf("mailbox: %+v", b)
	}
}
