package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
)

// The cases of the scenario.
const (
	caseKilled  = "a worker is killed"
	caseFrozen  = "a worker is frozen"
	caseRestart = "the server is restarted"
	caseNoWake  = "an append wakes nobody"
	caseRetry   = "a delivery failed"
	caseIdle    = "an idle worker stops"
	caseBusy    = "a worker stops whose handlers take 100 ms"
)

// How much there is of each.
const (
	troubled     = 20 // records that are held, appends without a wake
	failing      = 10 // deliveries that fail: from 20 on the circuit breaker would open
	busyHandlers = 64 // as many as run at once by default

	handlerTime   = 100 * time.Millisecond
	retryDelay    = time.Second
	troubleLease  = 15 * time.Second // the default
	troublePoll   = time.Second      // the default
	recoverWithin = time.Minute      // after that it is lost
)

// trouble measures what deliveries wait for where something is wrong, on a worker with its default settings. Its goals
// are those that docs/operations.md promises.
func trouble(ctx context.Context, p *play) error {
	p.Step("prepare the database")
	template, err := p.fill(ctx, workload{consumers: 1}, nil)
	if err != nil {
		return err
	}
	lease := max(time.Second, min(troubleLease, time.Duration(p.scale*float64(troubleLease))))
	random := clock.NewRand(clock.RandomSeed())
	on := func(name string, f func(context.Context, fault) error) option {
		return option{name, func(ctx context.Context, c *Case) error {
			return p.turn(ctx, template, func(ctx context.Context, url string) error {
				limited, cancel := context.WithTimeout(ctx, lease+recoverWithin)
				defer cancel()
				return f(limited, fault{play: p, url: url, lease: lease, random: random, c: c})
			})
		}}
	}
	options := []option{
		on(caseKilled, func(ctx context.Context, f fault) error {
			return f.takeover(ctx, func(w *process) error { w.kill(); return nil })
		}),
		on(caseNoWake, func(ctx context.Context, f fault) error { return f.noWake(ctx) }),
		on(caseRetry, func(ctx context.Context, f fault) error { return f.retry(ctx) }),
		on(caseIdle, func(ctx context.Context, f fault) error { return f.stop(ctx, 0) }),
		on(caseBusy, func(ctx context.Context, f fault) error { return f.stop(ctx, p.n(busyHandlers)) }),
	}
	if canFreeze {
		options = append(options, on(caseFrozen, func(ctx context.Context, f fault) error { return f.takeover(ctx, (*process).freeze) }))
	}
	if p.server.Embedded() { // somebody's server is not ours to restart
		options = append(options, on(caseRestart, func(ctx context.Context, f fault) error { return f.restart(ctx) }))
	}
	if err := p.alternate(ctx, options...); err != nil {
		return err
	}
	// A worker is lost when another has seen the same beat for a lease, and each looks three times in a lease.
	takeover := (lease + lease/3 + troublePoll).Seconds()
	p.report.atMost(caseKilled+": until the last of its records is delivered, s", takeover, p.report.of(caseKilled).value("last"))
	if canFreeze {
		p.report.atMost(caseFrozen+": until the last of its records is delivered, s", takeover, p.report.of(caseFrozen).value("last"))
	}
	if p.server.Embedded() {
		p.report.atMost(caseRestart+": from the first commit to its handler, s", 10, p.report.of(caseRestart).value("delivered"))
	}
	p.report.atMost(caseNoWake+": the longest from commit to handler, s", 2*troublePoll.Seconds(), p.report.of(caseNoWake).value("max"))
	p.report.atMost(caseRetry+": the latest after its time, s", troublePoll.Seconds(), p.report.of(caseRetry).value("max"))
	p.report.atMost(caseIdle+", s", 1, p.report.of(caseIdle).value("stop"))
	p.report.atMost(caseBusy+", s", 1, p.report.of(caseBusy).value("stop"))
	return nil
}

// fault is one turn.
type fault struct {
	*play
	url    string
	lease  time.Duration
	random *clock.Rand
	c      *Case
}

// records are the keys of so many records.
func (f fault) records(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s%d", recordPrefix, i)
	}
	return list
}

// pause is a time between from and from + within.
func (f fault) pause(ctx context.Context, from, within time.Duration) error {
	return clock.Sleep(ctx, clock.Real(), from+time.Duration(f.random.Int64N(int64(within))))
}

// takeover lets a worker process hold records, strikes it, and waits until another worker has begun them all.
func (f fault) takeover(ctx context.Context, strike func(*process) error) (err error) {
	holder, err := startProcess(ctx, f.url, "--hold", f.lease.String())
	if err != nil {
		return err
	}
	defer holder.kill()
	records := f.records(f.n(troubled))
	err = onConnection(ctx, f.url, func(conn *pgx.Conn) error {
		client, err := keyline.NewClient(keyline.ClientConfig{})
		if err == nil {
			err = appendTo(ctx, client, conn, records)
		}
		if err != nil {
			return err
		}
		return untilTrue(ctx, func() (bool, error) {
			var n int
			err := conn.QueryRow(ctx, sqlHeld).Scan(&n)
			return n == len(records), err
		})
	})
	if err != nil {
		return fmt.Errorf("let a worker hold %d records: %w", len(records), err)
	}
	r, err := f.newProbe(ctx, f.url, f.lease, keyline.RetryPolicy{}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	// How long ago the last beat was is chance.
	if err := f.pause(ctx, f.lease/3, f.lease/3); err != nil {
		return err
	}
	began := r.clock.Mono()
	if err := strike(holder); err != nil {
		return err
	}
	starts, err := r.await(ctx, records, 1)
	if err != nil {
		return err
	}
	f.report.Duplicates += r.again(1)
	waits := sortedWaits(starts, func(s start) time.Duration { return s.mono - began })
	f.c.add("first", "s", waits[0].Seconds())
	f.c.add("last", "s", waits[len(waits)-1].Seconds())
	return nil
}

// restart restarts the server under a worker, and appends as soon as it answers.
func (f fault) restart(ctx context.Context) (err error) {
	r, err := f.newProbe(ctx, f.url, f.lease, keyline.RetryPolicy{}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	before, after := f.records(2)[:1], f.records(2)[1:]
	if err := r.append(ctx, before); err != nil {
		return err
	}
	if _, err := r.await(ctx, before, 1); err != nil {
		return err
	}
	// What is not flushed yet would come again, and rightly.
	err = onConnection(ctx, f.url, func(conn *pgx.Conn) error {
		return untilTrue(ctx, func() (settled bool, err error) {
			err = conn.QueryRow(ctx, sqlSettled).Scan(&settled)
			return settled, err
		})
	})
	if err != nil {
		return err
	}
	began := r.clock.Mono()
	if err := f.server.Restart(ctx); err != nil {
		return err
	}
	up := r.clock.Mono()
	// The pool finds out one by one that its connections are gone.
	err = untilTrue(ctx, func() (bool, error) { return r.append(ctx, after) == nil, nil })
	if err != nil {
		return err
	}
	committed := r.clock.Mono()
	starts, err := r.await(ctx, after, 1)
	if err != nil {
		return err
	}
	f.report.Duplicates += r.again(1)
	f.c.add("down", "s", (up - began).Seconds())
	f.c.add("committed", "s", (committed - up).Seconds())
	f.c.add("delivered", "s", max(0, starts[0].mono-committed).Seconds())
	return nil
}

// noWake appends without a wake, each at some moment between two polls.
func (f fault) noWake(ctx context.Context) (err error) {
	r, err := f.newProbe(ctx, f.url, f.lease, keyline.RetryPolicy{}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	var waits []time.Duration
	for _, record := range f.records(f.n(troubled)) {
		if err := f.pause(ctx, 0, troublePoll); err != nil {
			return err
		}
		err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "set local keyline.wake = off"); err != nil {
				return err
			}
			return appendTo(ctx, r.client, tx, []string{record})
		})
		if err != nil {
			return err
		}
		committed := r.clock.Mono()
		starts, err := r.await(ctx, []string{record}, 1)
		if err != nil {
			return err
		}
		waits = append(waits, max(0, starts[0].mono-committed))
	}
	f.report.Duplicates += r.again(1)
	slices.Sort(waits)
	f.c.add("p50", "s", waits[(len(waits)-1)/2].Seconds())
	f.c.add("max", "s", waits[len(waits)-1].Seconds())
	return nil
}

// retry lets deliveries fail once, and compares the beginning of the next run with when it was due.
func (f fault) retry(ctx context.Context) (err error) {
	r, err := f.newProbe(ctx, f.url, f.lease, keyline.RetryPolicy{Delays: []time.Duration{retryDelay}}, func(_ context.Context, run int) error {
		if run == 1 {
			return errors.New("not now")
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	records := f.records(f.n(failing))
	if err := r.append(ctx, records); err != nil {
		return err
	}
	due := map[string]time.Time{}
	err = onConnection(ctx, f.url, func(conn *pgx.Conn) error {
		return untilTrue(ctx, func() (bool, error) {
			rows, err := conn.Query(ctx, sqlDue)
			if err != nil {
				return false, err
			}
			var (
				record string
				at     time.Time
			)
			_, err = pgx.ForEachRow(rows, []any{&record, &at}, func() error { due[record] = at; return nil })
			return len(due) == len(records), err
		})
	})
	if err != nil {
		return fmt.Errorf("let %d deliveries fail: %w", len(records), err)
	}
	starts, err := r.await(ctx, records, 2)
	if err != nil {
		return err
	}
	f.report.Duplicates += r.again(2)
	var late []time.Duration
	for i, s := range starts {
		late = append(late, s.at.Sub(due[records[i]]))
	}
	slices.Sort(late)
	f.c.add("p50", "s", late[(len(late)-1)/2].Seconds())
	f.c.add("max", "s", late[len(late)-1].Seconds())
	return nil
}

// stop stops a worker, while so many handlers run.
func (f fault) stop(ctx context.Context, busy int) error {
	r, err := f.newProbe(ctx, f.url, f.lease, keyline.RetryPolicy{}, func(ctx context.Context, _ int) error {
		return clock.Sleep(ctx, clock.Real(), handlerTime)
	})
	if err != nil {
		return err
	}
	records := f.records(busy)
	err = r.append(ctx, records)
	if err == nil {
		_, err = r.await(ctx, records, 1)
	}
	began := r.clock.Mono()
	err = errors.Join(err, r.close(ctx))
	f.c.add("stop", "s", (r.clock.Mono() - began).Seconds())
	return err
}

func sortedWaits(starts []start, wait func(start) time.Duration) (list []time.Duration) {
	for _, s := range starts {
		list = append(list, wait(s))
	}
	slices.Sort(list)
	return list
}

// untilTrue asks until the answer is yes.
func untilTrue(ctx context.Context, ask func() (bool, error)) error {
	for {
		if yes, err := ask(); yes || err != nil {
			return err
		}
		if err := clock.Sleep(ctx, clock.Real(), settledPoll); err != nil {
			return err
		}
	}
}
