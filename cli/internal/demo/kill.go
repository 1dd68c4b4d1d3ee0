package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
)

// killed is what is known about the worker that was killed.
type killed struct {
	process *process
	worker  int64 // its row in workers
	records []held
	// recovered are those of its records that others have taken over.
	recovered int
}

// held is a record that a worker holds.
type held struct {
	id  int64
	key keyline.Key
}

// holder is a worker that holds records.
type holder struct {
	worker   int64
	pid      int
	instance string
	records  int
}

// How the worker to be killed is looked for.
const (
	// wantedClaims is how many records it should hold, and for how long to look
	// for one that holds so many. Then one is enough.
	wantedClaims = 3
	wantedFor    = time.Second
	// searchLimit is when the search is given up.
	searchLimit = 20 * time.Second
	// sessionsLimit is how long the server may take to notice that a client died.
	sessionsLimit = 5 * time.Second
)

var errNoHolder = errors.New("no worker was found holding records")

// killHolder kills a worker that holds records, starts another one in its
// place, and waits until its records are taken over.
func (d *demo) killHolder(ctx context.Context) error {
	// A dying worker's last flush may have arrived: then it left nothing behind,
	// which shows nothing. Another one has to go.
	for len(d.kill.records) == 0 {
		if err := d.killOne(ctx); err != nil {
			return err
		}
	}
	at := d.Clock.Mono()
	d.show.killed(d.kill)
	replacement, err := d.cluster.start()
	if err != nil {
		return err
	}
	d.show.say("worker %s is started in its place (pid %d), as a process manager would", replacement.name, replacement.cmd.Process.Pid)
	ids := make([]int64, len(d.kill.records))
	for i, r := range d.kill.records {
		ids[i] = r.id
	}
	limited, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	err = d.until(limited, func(ctx context.Context) (bool, error) {
		now, err := d.heldBy(ctx, d.kill.worker)
		d.kill.recovered = len(ids) - len(now)
		return err == nil && len(now) == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait for the takeover of %d records: %w", len(ids), err)
	}
	d.show.event("%s's %d records are free again %.1f s after the kill; the other workers go on with them",
		d.kill.process.name, len(ids), (d.Clock.Mono() - at).Seconds())
	return replacement.await(ctx)
}

// killOne freezes the worker that holds most, looks again whether it does, and
// kills it. What it left behind is read when the server has seen its end.
func (d *demo) killOne(ctx context.Context) error {
	p, h, err := d.freezeHolder(ctx)
	if err != nil {
		return err
	}
	if err := d.cluster.kill(p); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, sessionsLimit)
	defer cancel()
	err = d.until(limited, func(ctx context.Context) (bool, error) {
		var n int
		err := d.pool.QueryRow(ctx, sqlSessions, h.instance).Scan(&n)
		return n == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait for the end of %s's sessions: %w", p.name, err)
	}
	records, err := d.heldBy(ctx, h.worker)
	d.kill = killed{process: p, worker: h.worker, records: records}
	return err
}

// freezeHolder returns a worker that is frozen while it holds records.
func (d *demo) freezeHolder(ctx context.Context) (p *process, h holder, err error) {
	began := d.Clock.Mono()
	limited, cancel := context.WithTimeoutCause(ctx, searchLimit, errNoHolder)
	defer cancel()
	err = d.until(limited, func(ctx context.Context) (bool, error) {
		want := wantedClaims
		if d.Clock.Mono()-began > wantedFor {
			want = 1
		}
		if p, h, err = d.holder(ctx); err != nil || p == nil || h.records < want {
			return false, err
		}
		if err := p.freeze(); err != nil {
			return false, fmt.Errorf("freeze worker %s: %w", p.name, err)
		}
		records, err := d.heldBy(ctx, h.worker)
		if err == nil && len(records) >= want {
			return true, nil
		}
		return false, errors.Join(err, p.thaw())
	})
	return p, h, err
}

// holder returns the worker that holds most records now.
func (d *demo) holder(ctx context.Context) (*process, holder, error) {
	rows, err := d.pool.Query(ctx, sqlHolders)
	if err != nil {
		return nil, holder{}, err
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h holder, err error) {
		err = row.Scan(&h.worker, &h.pid, &h.instance, &h.records)
		return h, err
	})
	if err != nil || len(list) == 0 {
		return nil, holder{}, err
	}
	return d.cluster.of(list[0].pid), list[0], nil
}

// heldBy are the records that a worker holds now.
func (d *demo) heldBy(ctx context.Context, worker int64) ([]held, error) {
	rows, err := d.pool.Query(ctx, sqlHeld, worker)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h held, err error) {
		err = row.Scan(&h.id, &h.key.Tenant, &h.key.Record)
		return h, err
	})
	return slices.Clip(list), err
}
