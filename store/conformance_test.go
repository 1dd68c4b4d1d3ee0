package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/conformance"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/keylinetype"
)

// TestStoreConforms: the contract that the twin keeps, on PostgreSQL.
func TestStoreConforms(t *testing.T) { conformance.Run(t, newInstallation) }

// TestStoreAndTwinAnswerAlike: the same random operations on both, every answer and all rows compared.
func TestStoreAndTwinAnswerAlike(t *testing.T) {
	conformance.Compare(t, newInstallation, conformance.Twin)
}

// installation is a store on PostgreSQL as the suite sees it.
type installation struct {
	*rig
	// defs are the registered consumers by id, to revise.
	defs map[int32]Definition
}

func newInstallation(t *testing.T) conformance.Installation {
	t.Helper()
	db := testdb.New(t)
	r := &rig{T: t, db: db, pool: db.Pool()}
	r.Store = openStore(t, db)
	r.sweepAll() // its first sweep would look for what a step of the clock has done
	return &installation{rig: r, defs: map[int32]Definition{}}
}

func (x *installation) Now() time.Time { return get[time.Time](x.rig, "select clock_timestamp()") }

// Advance moves all that is written back, for the clock cannot be moved on.
func (x *installation) Advance(d time.Duration) {
	x.Helper()
	err := pgx.BeginFunc(x.Context(), x.pool, func(tx pgx.Tx) error {
		// Events are append-only, by trigger.
		if _, err := tx.Exec(x.Context(), "set local session_replication_role = replica"); err != nil {
			return err
		}
		for _, sql := range []string{
			"update keyline.mailboxes set due_at = due_at - $1::interval, wants_due_at = wants_due_at - $1, claimed_at = claimed_at - $1",
			"update keyline.checkpoints set next_attempt_at = next_attempt_at - $1::interval, first_failed_at = first_failed_at - $1",
			"update keyline.dead_letters set due_at = due_at - $1::interval, first_failed_at = first_failed_at - $1, failed_at = failed_at - $1",
			"update keyline.failures set at = at - $1::interval",
			"update keyline.skips set at = at - $1::interval",
			"update keyline.workers set ended_at = ended_at - $1::interval",
			"update keyline.consumers set start_time = start_time - $1::interval",
			"update keyline.events set created_at = created_at - $1::interval, occurred_at = occurred_at - $1",
		} {
			if _, err := tx.Exec(x.Context(), x.named(sql), d); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		x.Fatal(err)
	}
}

func (x *installation) Append(key string, events ...sim.NewEvent) int64 {
	x.Helper()
	x.Begin(key, events...).Commit()
	return x.record(key)
}

func (x *installation) Begin(key string, events ...sim.NewEvent) conformance.Appender {
	x.Helper()
	tx, err := x.pool.Begin(x.Context())
	if err != nil {
		x.Fatal(err)
	}
	for _, e := range events {
		if _, err := tx.Exec(x.Context(), x.named("select keyline.append($1, $2, 'null', version => $3)"), key, e.Type, max(e.Version, 1)); err != nil {
			x.Fatal(err)
		}
	}
	a := &appending{rig: x.rig, tx: tx}
	x.Cleanup(a.end)
	return a
}

type appending struct {
	*rig
	tx pgx.Tx
}

// end is for appends that a failed test leaves open.
func (a *appending) end() { _ = a.tx.Rollback(context.Background()) }

func (a *appending) Commit() {
	if err := a.tx.Commit(a.Context()); err != nil {
		a.Fatal(err)
	}
}

func (a *appending) Rollback() {
	if err := a.tx.Rollback(a.Context()); err != nil {
		a.Fatal(err)
	}
}

func (x *installation) Register(c core.Consumer) int32 {
	x.Helper()
	c.Revision = 1
	d := Definition{Consumer: c}
	id := x.register(d)
	x.defs[id] = d
	return id
}

func (x *installation) Revise(id int32, change func(*core.Consumer)) {
	x.Helper()
	d := x.defs[id]
	change(&d.Consumer)
	d.Revision++
	x.defs[id] = d
	x.register(d)
}

func (x *installation) SetStatus(id int32, to core.Status) bool {
	x.Helper()
	err := x.rig.SetStatus(x.Context(), x.defs[id].Name, to, "op", "")
	if err != nil && !errors.Is(err, keylinetype.ErrConflict) {
		x.Fatal(err)
	}
	return err == nil
}

func (x *installation) Sweep() { x.sweepAll() }

func (x *installation) Command(c core.Command) int64 {
	x.Helper()
	id, err := x.rig.Command(x.Context(), c, "")
	if err != nil {
		x.Fatal(err)
	}
	return id
}

func (x *installation) Process(hosts map[string]int) conformance.Process {
	x.Helper()
	p := &process{Store: openStore(x.T, x.db, func(c *Config) {
		c.Local = map[string]Local{}
		for name, revision := range hosts {
			c.Local[name] = Local{Revision: revision, Window: 1}
		}
	}), t: x.T}
	id, err := p.Join(x.Context(), core.Worker{Name: "w", Host: "here", PID: 1, Lease: conformance.Lease})
	if err != nil {
		x.Fatal(err)
	}
	p.Become(id)
	return p
}

// process is a store of its own on the same database.
type process struct {
	*Store
	t       *testing.T
	batches int64
}

func (p *process) Worker() int64 { return p.workerID() }

func (p *process) Become(worker int64) { p.SetWorker(worker) }

func (p *process) Apply(f core.Flush, epoch int64, lost bool) core.FlushResult {
	p.t.Helper()
	if lost { // it goes through, and the committer, which does not know it, sends the same
		p.batches++
		if _, err := p.flush(p.t.Context(), []pending{ahead(f, epoch)}, 1, p.batches); err != nil && unavailable(err) && !errors.Is(err, errUnencodable) {
			p.t.Fatal(err) // any other error is about the texts, and the committer finds out too
		}
	}
	answer := make(chan core.FlushResult, 1)
	p.Flush(&f, epoch, func(r core.FlushResult) { answer <- r })
	return <-answer
}

func (p *process) Transact(w *core.Work, handler func() error, book func(error) core.Booking) core.Outcome {
	return p.RunTx(p.t.Context(), w, func(context.Context, pgx.Tx) error { return handler() }, book)
}

// Rows reads the tables.
func (x *installation) Rows() sim.Rows {
	x.Helper()
	rows := sim.Rows{Epoch: x.epoch()}
	list(x, &rows.Consumers, `select c.id, c.name, c.status, c.revision, coalesce(c.sweep, ''),
			array(select l.record_id from keyline.sweep_left l where l.consumer_id = c.id order by 1) from keyline.consumers c order by c.id`,
		func(r pgx.Rows, c *sim.ConsumerRow) error {
			return r.Scan(&c.ID, &c.Name, &c.Status, &c.Revision, &c.Sweep, &c.Left)
		})
	list(x, &rows.Records, `select r.id, r.record_key, r.head, r.cursor, m.record_id is not null, coalesce(m.claimed_by, 0), coalesce(m.token, 0),
			coalesce(m.cursor, 0), coalesce(m.crashes, 0), coalesce(m.unclean, false), m.due_at, m.claimed_at, m.wants, m.wants_due_at
		from keyline.records r left join keyline.mailboxes m on m.record_id = r.id order by r.id`,
		func(r pgx.Rows, c *sim.RecordRow) error {
			var (
				has            bool
				m              sim.Mailbox
				due            pgtypeTime
				claimed, wants *time.Time
			)
			if err := r.Scan(&c.ID, &c.Key, &c.Head, &c.Cursor, &has, &m.ClaimedBy, &m.Token, &m.Cursor, &m.Crashes, &m.Unclean, &due, &claimed, &m.Wants, &wants); err != nil {
				return err
			}
			m.ClaimedAt, m.WantsDueAt, m.DueAt = value(claimed), value(wants), due.finite()
			if m.DueAt.IsZero() {
				m.DueAt = sim.Never
			}
			if has {
				c.Mailbox = &m
			}
			return nil
		})
	of := make(map[int64]*sim.RecordRow, len(rows.Records))
	for i := range rows.Records {
		of[rows.Records[i].ID] = &rows.Records[i]
	}
	x.about(of)
	return rows
}

// about reads what is about records.
func (x *installation) about(of map[int64]*sim.RecordRow) {
	x.Helper()
	var (
		checkpoints []core.Checkpoint
		letters     []sim.DeadRow
		failures    []core.Failure
		skips       []core.Skip
		commands    []sim.CommandRow
	)
	list(x, &checkpoints, `select record_id, consumer_id, seq, state, attempt, granted, crashes, next_attempt_at, first_failed_at, coalesce(error_code, ''), live_from, coalesce(redeliver_to, -1)
		from keyline.checkpoints order by consumer_id`,
		func(r pgx.Rows, c *core.Checkpoint) error {
			var next, first *time.Time
			err := r.Scan(&c.Record, &c.Consumer, &c.Seq, &c.State, &c.Attempt, &c.Granted, &c.Crashes, &next, &first, &c.ErrorCode, &c.LiveFrom, &c.RedeliverTo)
			c.NextAttemptAt, c.FirstFailedAt = value(next), value(first)
			return err
		})
	list(x, &letters, `select id, record_id, consumer_id, seq, attempt, granted, crashes, started, due_at, first_failed_at, error_code, reason, status, failed_at
		from keyline.dead_letters order by seq, consumer_id`,
		func(r pgx.Rows, d *sim.DeadRow) error {
			var due *time.Time
			err := r.Scan(&d.ID, &d.Record, &d.Consumer, &d.Seq, &d.Attempt, &d.Granted, &d.Crashes, &d.Started, &due, &d.FirstFailedAt, &d.ErrorCode,
				&d.Reason, &d.Status, &d.FailedAt)
			d.DueAt = value(due)
			return err
		})
	list(x, &failures, `select record_id, seq, consumer_id, attempt, at, error_code from keyline.failures order by seq, consumer_id, attempt`,
		func(r pgx.Rows, f *core.Failure) error {
			return r.Scan(&f.Record, &f.Seq, &f.Consumer, &f.Attempt, &f.At, &f.Code)
		})
	list(x, &skips, `select record_id, seq, consumer_id, attempt, code, reason, at from keyline.skips order by seq, consumer_id, attempt`,
		func(r pgx.Rows, s *core.Skip) error {
			return r.Scan(&s.Record, &s.Seq, &s.Consumer, &s.Attempt, &s.Code, &s.Reason, &s.At)
		})
	list(x, &commands, `select id, record_id, kind, coalesce(consumer_id, 0), seq, coalesce(dead_letter_id, 0), actor, reason, applied_at is not null,
			coalesce(done, false), coalesce(detail, '') from keyline.commands order by id`,
		func(r pgx.Rows, c *sim.CommandRow) error {
			return r.Scan(&c.ID, &c.Record, &c.Kind, &c.Consumer, &c.Seq, &c.DeadLetter, &c.Actor, &c.Reason, &c.Applied, &c.Done, &c.Detail)
		})
	for _, c := range checkpoints {
		of[c.Record].Checkpoints = append(of[c.Record].Checkpoints, c)
	}
	for _, d := range letters {
		of[d.Record].DeadLetters = append(of[d.Record].DeadLetters, d)
	}
	for _, f := range failures {
		of[f.Record].Failures = append(of[f.Record].Failures, f)
	}
	for _, s := range skips {
		of[s.Record].Skips = append(of[s.Record].Skips, s)
	}
	for _, c := range commands {
		of[c.Record].Commands = append(of[c.Record].Commands, c)
	}
}

// list reads rows one by one.
func list[T any](x *installation, dst *[]T, sql string, scan func(pgx.Rows, *T) error, args ...any) {
	x.Helper()
	rows, err := x.pool.Query(x.Context(), x.named(sql), args...)
	if err != nil {
		x.Fatal(err)
	}
	*dst, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (v T, err error) {
		return v, scan(row.(pgx.Rows), &v)
	})
	if err != nil {
		x.Fatal(err)
	}
}
