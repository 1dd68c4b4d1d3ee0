package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/testdb"
)

func TestPruneReadsOnlyWhatItIsAbout(t *testing.T) {
	r := newRig(t)
	c := r.register(definition("c"), definition("d"))
	r.sweepAll()
	if err := r.BareSeed(t.Context(), "r", planRecords, 1); err != nil {
		t.Fatal(err)
	}
	r.exec("update keyline.records set cursor = head")
	r.exec("delete from keyline.mailboxes")
	r.exec("insert into keyline.checkpoints (record_id, consumer_id, seq, state) select id, $1, 0, 'ready' from keyline.records where id % 4 = 0", c)
	r.exec(`insert into keyline.dead_letters (record_id, seq, consumer_id, event_id, attempt, reason, error_code, first_failed_at, failed_at)
		select id, 1, $1, gen_random_uuid(), 4, 'exhausted', 'x', now(), now() from keyline.records where id % 3 = 0`, c)
	r.exec(`insert into keyline.failures (record_id, seq, consumer_id, attempt, at, error_code) select id, 1, $1, 1, now() - interval '8 days', 'x' from keyline.records`, c)
	// One record with a long young stream behind an old event: how much is young must not matter.
	r.exec(`update keyline.records set head = 50001, cursor = 50001 where id = 1`)
	r.exec(`insert into keyline.events select 1, 1 + s, gen_random_uuid(), 't', 1, '{}', '{}', null, now(), clock_timestamp() + interval '1 hour' from generate_series(1, 50000) s`)
	before := r.clock.Now().Add(time.Minute)
	for _, statistics := range []string{"of empty tables", "of full tables"} {
		t.Run(statistics, func(t *testing.T) {
			r := r.sub(t)
			if statistics == "of full tables" {
				r.exec("analyze")
			}
			for _, apply := range []bool{false, true} {
				tx := r.begin()
				r.frugal(tx, "operate_prune_events", 4*pruneRecords, int64(0), before, pruneRecords, pruneEvents, apply, "me", "", int64(0))
				r.frugal(tx, "operate_prune_events", 4*pruneRecords, int64(50_000), before, pruneRecords, pruneEvents, apply, "me", "", int64(0))
				r.rollbackTx(tx)
			}
			tx := r.begin()
			r.frugal(tx, "operate_prune_failures", 2*pruneFailures, before, pruneFailures, "me", "", int64(0))
			r.frugal(tx, "operate_prune_workers", 0, before, pruneWorkers, "me", "", int64(0))
			r.rollbackTx(tx)
		})
	}
}

// A chunk ends at so many events; the records behind are not looked at for nothing, again and again.
func TestAPruneOfLongRecordsDoesNotLookAtThoseBehindAgainAndAgain(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"))
	r.sweepAll()
	const records, events = 300, 100
	if err := r.BareSeed(t.Context(), "r", records, events); err != nil {
		t.Fatal(err)
	}
	r.exec("update keyline.records set cursor = head")
	r.exec("delete from keyline.mailboxes")
	testdb.Eventually(t, func() bool {
		return get[bool](r, "select clock_timestamp() > max(created_at) + interval '1 millisecond' from keyline.events")
	}, "events to be old")
	// A session of its own, whose end makes its statistics known.
	pool, err := pgxpool.New(t.Context(), r.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	o, err := NewOperate(pool, r.Schema())
	if err != nil {
		t.Fatal(err)
	}
	looks := func() int64 {
		return get[int64](r, "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_all_tables where schemaname = 'keyline' and relname = 'records'")
	}
	before := looks()
	report, err := o.Prune(t.Context(), PruneOptions{OlderThan: time.Millisecond}, "me", "")
	if err != nil || report.Events != records*events || report.Records != records {
		t.Fatalf("%+v: %v", report, err)
	}
	pool.Close()
	testdb.Eventually(t, func() bool {
		return get[int64](r, "select n_tup_del from pg_stat_all_tables where schemaname = 'keyline' and relname = 'events'") == records*events
	}, "the statistics")
	if n := looks() - before; n > 8*records {
		t.Errorf("%d looks at %d records", n, records)
	}
}

// What holds each of a chunk's records back is found for all of them at once, and not by comparing each with all: how many rows the
// plan's nodes handle grows as what is held does. (Nothing but the plan says so, since no table is read for it.)
func TestAPruneComparesNoRecordsHoldsWithAnothers(t *testing.T) {
	r := newRig(t)
	const records, consumers = 400, 10
	var list []Definition
	for i := range consumers {
		list = append(list, definition(fmt.Sprintf("c%d", i)))
	}
	r.register(list...)
	r.sweepAll()
	if err := r.BareSeed(t.Context(), "r", records, 1); err != nil {
		t.Fatal(err)
	}
	r.exec("update keyline.consumers set status = 'paused'")
	var plans []string
	cfg := r.pool.Config().ConnConfig.Copy()
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { plans = append(plans, n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, set := range []string{
		"load 'auto_explain'", "set auto_explain.log_min_duration = 0", "set auto_explain.log_nested_statements = on", "set auto_explain.log_analyze = on",
		"set auto_explain.log_timing = off", "set auto_explain.log_format = 'json'", "set auto_explain.log_level = 'notice'",
	} {
		if _, err := conn.Exec(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	var (
		passed, events int64
		held           []byte
	)
	row := conn.QueryRow(t.Context(), r.named("select p.passed, p.events, p.held from keyline.prune_events(0, clock_timestamp() + interval '1 hour', $1, 1000, false, 'me', '', null) p"), records)
	if err := row.Scan(&passed, &events, &held); err != nil || events != 0 {
		t.Fatal(passed, events, err)
	}
	var holds []PruneHold
	if err := json.Unmarshal(held, &holds); err != nil || len(holds) != consumers || holds[0].Records != records {
		t.Fatalf("%d consumers hold: %s (%v)", len(holds), held, err)
	}
	handled, nodes := 0.0, 0
	for _, text := range plans {
		if at := strings.Index(text, "{"); at >= 0 {
			var plan map[string]any
			if err := json.Unmarshal([]byte(text[at:]), &plan); err != nil {
				t.Fatal(err)
			}
			h, n := handledBy(plan["Plan"].(map[string]any))
			handled, nodes = handled+h, nodes+n
		}
	}
	t.Logf("%v rows handled by %d nodes", handled, nodes)
	if nodes == 0 || handled > 40*records*consumers {
		t.Errorf("%v rows handled by %d nodes, for %d holds", handled, nodes, records*consumers)
	}
}

// handledBy is how many rows a node of a plan that was carried out, and those below it, gave or threw away, and how many nodes they are.
func handledBy(node map[string]any) (rows float64, nodes int) {
	loops, _ := node["Actual Loops"].(float64)
	for _, what := range []string{"Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter"} {
		n, _ := node[what].(float64)
		rows += n * loops
	}
	below, _ := node["Plans"].([]any)
	nodes = 1
	for _, b := range below {
		r, n := handledBy(b.(map[string]any))
		rows, nodes = rows+r, nodes+n
	}
	return rows, nodes
}
