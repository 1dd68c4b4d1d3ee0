package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/pgdev"
)

// bench is the server that all sides share, with one side's settings.
type bench struct {
	settings
	server    *pgdev.Server
	databases *atomic.Int64 // that were made
}

// with is the same server with other settings.
func (b *bench) with(s settings) *bench {
	c := *b
	c.settings = s
	return &c
}

// fresh makes a database for one run and a pool on it.
func (b *bench) fresh(ctx context.Context) (*pgxpool.Pool, func(), error) {
	name := fmt.Sprintf("bench_%d", b.databases.Add(1))
	admin, err := pgx.Connect(ctx, b.server.URL("postgres"))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = admin.Close(ctx) }()
	if _, err := admin.Exec(ctx, "create database "+name); err != nil {
		return nil, nil, err
	}
	cfg, err := pgxpool.ParseConfig(b.server.URL(name))
	if err != nil {
		return nil, nil, err
	}
	cfg.MaxConns = b.MaxConns
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	if b.Tx {
		if _, err := pool.Exec(ctx, effects); err != nil {
			pool.Close()
			return nil, nil, err
		}
	}
	return pool, func() {
		pool.Close()
		ctx := context.WithoutCancel(ctx)
		if admin, err := pgx.Connect(ctx, b.server.URL("postgres")); err == nil {
			_, _ = admin.Exec(ctx, "drop database if exists "+name+" with (force)")
			_ = admin.Close(ctx)
		}
	}, nil
}

// preload makes the server count statements.
func preload(ctx context.Context, server *pgdev.Server) error {
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "alter system set shared_preload_libraries = pg_stat_statements")
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	return server.Restart(ctx)
}

// pin opens a transaction with an id of its own in the run's database, beside
// its connections, where the run is to have one, and returns how to end it.
func (b *bench) pin(ctx context.Context, pool *pgxpool.Pool) (unpin func(), err error) {
	none := func() {}
	if !b.Pinned {
		return none, nil
	}
	cfg := pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["application_name"] = meterName
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return none, err
	}
	unpin = func() { _ = conn.Close(context.WithoutCancel(ctx)) }
	if _, err := conn.Exec(ctx, "begin; select pg_current_xact_id()"); err != nil {
		unpin()
		return none, err
	}
	return unpin, nil
}

// drain times how long a side takes for what there is, from its start until
// everything was handled and nothing is left, and says what that cost.
func (b *bench) drain(ctx context.Context, pool *pgxpool.Pool, books *books, events int, left string, start func() (stop func() error, err error)) (outcome, error) {
	unpin, err := b.pin(ctx, pool)
	if err != nil {
		return outcome{}, err
	}
	defer unpin()
	m, err := b.meter(ctx, pool, pool)
	if err != nil {
		return outcome{}, err
	}
	begun := time.Now()
	stop, err := start()
	if err != nil {
		return outcome{}, err
	}
	took, err := books.drained(ctx, pool, begun, left)
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	o := books.outcome(float64(events) / took.Seconds())
	if err == nil && b.Tx {
		var n int64
		err = pool.QueryRow(ctx, "select count(*) from effects").Scan(&n)
		o.Lost += int64(len(books.seen)) - n // no row can be there twice
	}
	if err == nil {
		o.Cost, err = m.read(ctx, len(books.seen))
	}
	return o, err
}

// A handler that writes into its delivery's transaction: where, and what.
const (
	effects = "create table effects (n bigint primary key)"
	effect  = "insert into effects (n) values ($1)"
)

// appending lets the clients append, and counts what is then stored where the
// peer keeps what was worked on. stored is empty where it does not.
func (b *bench) appending(ctx context.Context, pool *pgxpool.Pool, stored string, f func(ctx context.Context, client, i int) error) (outcome, error) {
	committed, rate, err := clients(ctx, b.Clients, b.Duration, f)
	o := outcome{Value: rate}
	if err == nil && stored != "" {
		var n int64
		err = pool.QueryRow(ctx, stored).Scan(&n)
		o.Lost, o.Duplicates = max(committed-n, 0), max(n-committed, 0)
	}
	return o, err
}

// clients runs f again and again on n goroutines for a time, and returns how
// often it succeeded, and that per second.
func clients(ctx context.Context, n int, d time.Duration, f func(ctx context.Context, client, i int) error) (int64, float64, error) {
	var (
		count atomic.Int64
		wg    sync.WaitGroup
		once  sync.Once
		fail  error
	)
	begun := time.Now()
	for c := range n {
		wg.Go(func() {
			for i := 0; time.Since(begun) < d && ctx.Err() == nil; i++ {
				if err := f(ctx, c, i); err != nil {
					once.Do(func() { fail = err })
					return
				}
				count.Add(1)
			}
		})
	}
	wg.Wait()
	return count.Load(), float64(count.Load()) / time.Since(begun).Seconds(), fail
}

// openLoop calls f at a rate, whether or not the earlier calls have ended.
func openLoop(ctx context.Context, rate int, d time.Duration, f func(ctx context.Context, i int64) error) error {
	var wg sync.WaitGroup
	var once sync.Once
	var fail error
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	begun := time.Now()
	for i := int64(0); time.Since(begun) < d && ctx.Err() == nil; i++ {
		<-tick.C
		wg.Go(func() {
			if err := f(ctx, i); err != nil {
				once.Do(func() { fail = err })
			}
		})
	}
	wg.Wait()
	return fail
}

// version returns a dependency's version, as built in.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, d := range info.Deps {
		if d.Path == module {
			return d.Version
		}
	}
	return ""
}

// numbered is a job's payload where a peer takes bytes.
func numbered(n int64) []byte {
	return fmt.Appendf(nil, `{"n":%d,"by":"u1","note":"the quick brown fox"}`, n)
}

// numberOf reads the number back, with no more work than Keyline's handlers
// have with a record's key. -1: there is none.
func numberOf(payload []byte) int64 {
	digits, ok := bytes.CutPrefix(payload, []byte(`{"n":`))
	end := bytes.IndexByte(digits, ',')
	if !ok || end < 0 {
		return -1
	}
	n, err := strconv.ParseInt(string(digits[:end]), 10, 64)
	if err != nil {
		return -1
	}
	return n
}
