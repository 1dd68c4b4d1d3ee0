package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/pgdev"
)

// outboxTable is an outbox as teams have it, and where its old drainer delivers to: in the transaction that ends the rows.
const outboxTable = `
create table public.outbox (
	id bigint generated always as identity primary key, created_at timestamptz not null default clock_timestamp(),
	event_type text not null, payload jsonb not null, processed_at timestamptz);
create index on public.outbox (created_at, id) where processed_at is null;
create table faults.drained (key text, n integer, at timestamptz not null default clock_timestamp())`

const outboxSettings = `table: public.outbox
id: id
created: created_at
key: "payload->>'key'"
type: event_type
payload: payload
pending: processed_at is null
done: processed_at = clock_timestamp()
`

// outboxRace: while rivals take an outbox over and give it back, each row is delivered by one of the two drainers, once, and those of
// a record in the order in which they were written, wherever an act was broken off.
func outboxRace(crashing bool) func(*stage) {
	return func(t *stage) {
		if crashing {
			t.openOwn(pgdev.Options{Durable: true})
		} else {
			t.open()
		}
		t.exec(outboxTable)
		file := filepath.Join(t.dir, "outbox.yaml")
		t.must(os.WriteFile(file, []byte(outboxSettings), 0o600), "write the settings")
		t.start(spec{Name: "w1", Consumers: []string{"a"}, Config: keyline.Config{Lease: 4 * time.Second}})
		ctx, stop := context.WithCancel(t.ctx)
		var wait sync.WaitGroup
		t.onEnd(func() { stop(); wait.Wait() })
		const writers = 3
		sent := make([]int, 2*writers)
		for w := range writers {
			wait.Go(func() { t.writeOutbox(ctx, sent, w, writers) })
		}
		draining, stopDraining := context.WithCancel(t.ctx)
		t.onEnd(stopDraining)
		old := make(chan struct{})
		go func() {
			defer close(old)
			t.drainOutbox(draining)
		}()
		race := t.rivals(3, func(random *clock.Rand) choice { return chooseOutbox(random, file) })
		random := clock.NewRand(t.house.seed ^ 0x5eed)
		dead := t.house.clock.Mono()
		for race.on() {
			t.pause(time.Duration(200+random.IntN(600)) * time.Millisecond)
			switch n := random.IntN(8); {
			case crashing && n < 3:
				t.try("select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
			case crashing && n == 3 && t.house.clock.Mono()-dead > 6*time.Second:
				dead = t.house.clock.Mono()
				t.server.Kill()
				t.must(t.server.Restart(t.ctx), "restart")
			}
		}
		tried := race.stop()
		stop()
		wait.Wait()
		t.eventually("nothing waits any more", time.Minute, func() bool { return t.try("select count(*) from public.outbox where processed_at is null") == 0 })
		stopDraining()
		<-old
		t.check(allow{duplicates: 100, overlaps: crashing})
		t.judgeOutbox(tried, sent)
		t.summary(tried)
	}
}

func chooseOutbox(random *clock.Rand, file string) choice {
	on := func(verb string, more ...string) choice {
		return choice{verb, "", append([]string{"outbox", verb, "--wait", "5s"}, more...)}
	}
	switch random.IntN(10) {
	case 0:
		return on("prepare", "--settings", file)
	case 1, 2:
		return on("prepare", "--settings", file, "--guard")
	case 3:
		return on("backfill", "--table", "public.outbox", "--chunk", "3", "--all")
	case 4, 5, 6:
		return on("cutover", "--table", "public.outbox")
	}
	return on("back", "--table", "public.outbox")
}

// writeOutbox writes numbered rows of some records, as an application that knows nothing of Keyline. Some take Keyline's handler a
// while, so that the old drainer could overtake.
func (t *stage) writeOutbox(ctx context.Context, sent []int, w, writers int) {
	for clock.Sleep(ctx, t.house.clock, 5*time.Millisecond) == nil {
		for k := w; k < len(sent); k += writers {
			short, end := context.WithTimeout(t.ctx, 30*time.Second)
			_, err := t.pool.Exec(short, `insert into public.outbox (event_type, payload) values ('fault.noted', jsonb_build_object('key', $1::text, 'n', $2::int, 'ms', case when $2::int % 40 = 0 then 300 else 0 end))`,
				fmt.Sprintf("r%d", k), sent[k]+1)
			end()
			if err == nil {
				sent[k]++
				continue
			}
			// It may have been written, or not: the next number is another one only if it was.
			there := -1
			for there < 0 && t.ctx.Err() == nil {
				there = t.try("select count(*) from public.outbox where payload->>'key' = $1 and (payload->>'n')::int = $2", fmt.Sprintf("r%d", k), sent[k]+1)
			}
			sent[k] += max(there, 0)
		}
	}
}

// drainOutbox is the old drainer, which takes the lock since there is one.
func (t *stage) drainOutbox(ctx context.Context) {
	for clock.Sleep(ctx, t.house.clock, 10*time.Millisecond) == nil {
		short, end := context.WithTimeout(ctx, 20*time.Second)
		_ = pgx.BeginFunc(short, t.pool, func(tx pgx.Tx) error { // refused while Keyline drains; or the server is away
			if _, err := tx.Exec(short, "set local idle_in_transaction_session_timeout = '15s'"); err != nil {
				return err
			}
			var lock bool
			if err := tx.QueryRow(short, "select to_regproc('public.outbox_keyline_lock') is not null").Scan(&lock); err != nil {
				return err
			}
			if lock {
				if _, err := tx.Exec(short, "select public.outbox_keyline_lock()"); err != nil {
					return err
				}
			}
			var ids []int64
			err := tx.QueryRow(short, `with batch as (select id, payload from public.outbox where processed_at is null order by created_at, id limit 20 for update),
				delivered as (insert into faults.drained (key, n) select payload->>'key', (payload->>'n')::int from batch order by id)
				select coalesce(array_agg(id), '{}') from batch`).Scan(&ids)
			if err == nil && len(ids) > 0 {
				_, err = tx.Exec(short, "update public.outbox set processed_at = clock_timestamp() where id = any ($1)", ids)
			}
			return err
		})
		end()
	}
}

// judgeOutbox compares what the rivals were told with the audit, and what the two drainers have delivered with what was written.
func (t *stage) judgeOutbox(done []tried, sent []int) {
	all, of := t.audited()
	for _, a := range done {
		lines := of[a.actor]
		if wrong := judge(a, lines); wrong != "" {
			t.fail("%s: %s; the audit has %d lines", a, wrong, len(lines))
		}
	}
	forwarding := false
	for _, l := range all {
		switch l.Action {
		case "outbox_cutover", "outbox_back":
			if forwarding == (l.Action == "outbox_cutover") {
				t.fail("by the audit, line %d, %s while Keyline drained: %v", l.ID, l.Action, forwarding)
			}
			forwarding = !forwarding
		}
	}
	if n := t.number("select count(*) from pg_trigger where tgname = 'zz_keyline_3_forward'"); (n == 1) != forwarding {
		t.fail("Keyline drains: %d triggers say so, the audit: %v", n, forwarding)
	}
	rows, err := t.pool.Query(t.ctx, `with delivered as (
			select key, n, at, 'old' as by from faults.drained
			union all
			select r.record_key, (e.payload->>'n')::int, min(l.at), 'keyline' from crm.delivered_log l
				join keyline.records r on r.record_key = l.record_key join keyline.events e on e.record_id = r.id and e.seq = l.seq
				where l.mark = 'done' and l.consumer = 'a' group by 1, 2)
		select key, n, by from delivered order by key, at, n`)
	t.must(err, "read what was delivered")
	next, by := map[string]int{}, map[string]int{}
	var key, who string
	var n int
	for rows.Next() {
		t.must(rows.Scan(&key, &n, &who), "read what was delivered")
		by[who]++
		if next[key]++; n != next[key] && len(t.problems) < 5 {
			t.fail("%s: the delivery %d is of row %d, by %s", key, next[key], n, who)
			next[key] = n
		}
	}
	t.must(rows.Err(), "read what was delivered")
	for k, n := range sent {
		if got := next[fmt.Sprintf("r%d", k)]; got != n {
			t.fail("r%d: %d rows were written, %d delivered", k, n, got)
		}
	}
	t.found["drained_by"] = by
	if by["old"] == 0 || by["keyline"] == 0 {
		t.fail("one of the two has delivered nothing")
	}
}
