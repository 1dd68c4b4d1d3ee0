package store

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/testdb"
)

// sessionsOf notes which sessions have run which statements, by the statements' texts.
type sessionsOf struct {
	mu  sync.Mutex
	ran map[string][]uint32
}

func (s *sessionsOf) TraceBatchStart(ctx context.Context, conn *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	for _, q := range d.Batch.QueuedQueries {
		s.note(conn, q.SQL)
	}
	return ctx
}
func (*sessionsOf) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*sessionsOf) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (s *sessionsOf) TraceQueryStart(ctx context.Context, conn *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.note(conn, d.SQL)
	return ctx
}
func (*sessionsOf) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *sessionsOf) note(conn *pgx.Conn, sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pid := conn.PgConn().PID(); !slices.Contains(s.ran[sql], pid) {
		s.ran[sql] = append(s.ran[sql], pid)
	}
}

// Promise: what a delivery goes by has a session of its own, which has run it before the worker has joined: however much else
// goes on, no claim, load or flush is compiled and planned while events wait for it.
func TestDeliveriesGoByWarmSessions(t *testing.T) {
	t.Parallel()
	seen := &sessionsOf{ran: map[string][]uint32{}}
	db := testdb.New(t)
	r := &rig{T: t, db: db, pool: db.Pool(), Store: openStore(t, db, func(c *Config) { c.Pool.ConnConfig.Tracer = seen })}
	due := r.append("due") // before the worker joins
	r.me = r.join("w")
	r.SetWorker(r.me)
	if got := r.count("mailboxes", "claimed_by is not null"); got != 0 {
		t.Error("to warm the sessions has claimed a record")
	}
	warm := maps.Clone(seen.ran)
	path := [][]string{{"claim", "load_record", "next_due"}, {"load_records", "load_checkpoints", "load_commands", "load_retries"}, {"flush"}}
	var sessions []uint32
	for _, statements := range path {
		first := warm[r.q(statements[0])]
		for _, name := range statements {
			if got := warm[r.q(name)]; len(got) != 1 || !slices.Equal(got, first) {
				t.Errorf("%s: run by %v before the worker joined, want by the one session of %s, %v", name, got, statements[0], first)
			}
		}
		sessions = append(sessions, first...)
	}
	if slices.Sort(sessions); len(slices.Compact(sessions)) != len(path) {
		t.Errorf("sessions %v: want one each", sessions)
	}

	ids := append(r.appendTo("more", 8), due)
	var wg sync.WaitGroup
	busy := func(f func() error) {
		wg.Go(func() {
			for range 20 {
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	busy(func() error { // the claim loop's
		_, claimErr := r.Claim(t.Context(), core.ClaimRequest{Worker: r.me, Limit: 1, Unbounded: true})
		_, _, recordErr := r.ClaimRecord(t.Context(), core.ClaimRequest{Worker: r.me, Limit: 1, Record: ids[0]}, 9)
		_, _, dueErr := r.NextDue(t.Context(), nil)
		return errors.Join(claimErr, recordErr, dueErr)
	})
	busy(func() error { _, err := r.Load(t.Context(), []core.LoadRequest{{Limit: 1}}); return err })
	busy(func() error { _, err := r.KeepHealth(t.Context()); return err })
	busy(func() error { _, err := r.Sweep(t.Context()); return err })
	busy(func() error { _, _, err := r.News(t.Context(), ids); return err })
	epoch := r.epoch()
	busy(func() error {
		done := make(chan struct{})
		r.Flush(&core.Flush{Token: 1}, epoch, func(core.FlushResult) { close(done) })
		<-done
		return nil
	})
	wg.Wait()
	for _, statements := range path {
		for _, name := range statements {
			if got := seen.ran[r.q(name)]; !slices.Equal(got, warm[r.q(name)]) {
				t.Errorf("%s: run by %v, want by the one that was warm, %v", name, got, warm[r.q(name)])
			}
		}
	}
}

// Promise: where the database does not let a session warm up, the worker joins all the same, and delivers once it does.
func TestAWorkerJoinsColdWhereItsSessionsCannotWarmUp(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := &rig{T: t, db: db, pool: db.Pool(), Store: openStore(t, db)}
	record := r.append("due")
	tx := r.begin()
	r.in(tx, r.q("barrier")) // as a change of the registry that takes long
	r.me = r.join("w")
	r.SetWorker(r.me)
	r.commit(tx)
	c := r.claimOne(record)
	if got := r.flush1(core.Flush{Record: record, Token: c.Token, Head: 1, Cursor: 1, Then: core.Settle}); got.Status != core.FlushGone {
		t.Errorf("%+v", got)
	}
}
