package doctor

import (
	"context"
	"fmt"
	"strings"
)

// perWorker are the connections of a worker beside those of its handlers'
// transactions: deliveries, heartbeat, one that sleeps on a lock, one that listens.
const perWorker = 10 + 3 + 1 + 1

// leastTx is the least number of connections for handlers' transactions.
const leastTx = 4

// room is a limit of connections, and how many are used of it.
type room struct {
	of         string
	most, used int64 // most < 0: none
}

func (v *visit) connections(ctx context.Context) (finding, error) {
	server, database, role := room{of: "max_connections"}, room{of: "the database's connection limit"}, room{of: "the role's connection limit"}
	var keyline, workers, ended int64
	if err := v.row(ctx, "connections", nil, &server.most, &server.used, &database.most, &database.used, &role.most, &role.used, &keyline); err != nil {
		return finding{}, err
	}
	if v.installed {
		if err := v.row(ctx, "workers", nil, &workers, &ended); err != nil {
			return finding{}, err
		}
	}
	each := perWorker + max(int64(v.opts.Pool.MaxConns), leastTx)
	need := max(workers, 1) * each
	for _, r := range []room{server, database, role} {
		if r.most < 0 {
			continue
		}
		if r.used-keyline+need > r.most {
			return finding{Warn, fmt.Sprintf("%s lets in %d, %d are used by others, and the pools of %d workers may grow to %d", r.of, r.most, r.used-keyline, max(workers, 1), need),
				"raise the limit, lower pool_max_conns of the workers, or put the application behind a pooler"}, nil
		}
	}
	return fine("%d of %d connections are used; %d workers may use %d", server.used, server.most, max(workers, 1), need), nil
}

// silence is a live worker that has not renewed for longer than its lease.
type silence struct {
	Name    string
	Seconds float64
	Claims  int64
}

func (s silence) String() string {
	return fmt.Sprintf("%s for %s, with %d claims", s.Name, rounded(s.Seconds), s.Claims)
}

func (v *visit) workers(ctx context.Context) (finding, error) {
	found, err := list[silence](ctx, v, "silent")
	if err != nil {
		return finding{}, err
	}
	var live, ended int64
	if err := v.row(ctx, "workers", nil, &live, &ended); err != nil {
		return finding{}, err
	}
	const fix = "see whether their processes run and reach the database; `keyline recover` frees what they hold, once they are lost"
	switch {
	case len(found) > 0:
		return finding{Warn, fmt.Sprintf("%d of %d workers have been silent for more than their lease: %s", len(found), live, named(found)), fix}, nil
	case ended > 0 && live == 0:
		return finding{Fail, fmt.Sprintf("no worker lives, and %d that ended still hold claims", ended), "start a worker, or `keyline recover`"}, nil
	case live == 0:
		return finding{Warn, "no worker lives: nothing is delivered", "start one: `keyline worker`, or the application's own"}, nil
	}
	return fine("%d workers live, and all have renewed within their lease", live), nil
}

// lonely is an active consumer that no live worker runs.
type lonely struct {
	Name  string
	Waits bool
}

func (v *visit) unhosted(ctx context.Context) (finding, error) {
	found, err := list[lonely](ctx, v, "unhosted")
	if err != nil {
		return finding{}, err
	}
	var idle, waiting []string
	for _, c := range found {
		if c.Waits {
			waiting = append(waiting, c.Name)
		} else {
			idle = append(idle, c.Name)
		}
	}
	const fix = "start a worker that runs it; if none ever will, `keyline consumers retire NAME`"
	switch {
	case len(waiting) > 0:
		return finding{Fail, "work waits for consumers that no live worker runs: " + strings.Join(waiting, ", "), fix}, nil
	case len(idle) > 0:
		return finding{Warn, "no live worker runs " + strings.Join(idle, ", "), fix}, nil
	}
	return fine("every active consumer has a live worker that runs it"), nil
}
