package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline/internal/pgdev"
)

// cost is what one delivery of a drain has cost, from the start of the workers
// until they have ended.
type cost struct {
	// Statements that clients have sent; a batch's count one by one. Commits are of
	// this database. Both with transactions that only read.
	Statements float64 `json:"statements"`
	Commits    float64 `json:"commits"`
	// WALBytes of the whole server, which nothing else uses.
	WALBytes float64 `json:"wal_bytes"`
	// DeadRows are the updates and deletions, each of which leaves a dead version.
	DeadRows float64 `json:"dead_rows"`
	// ServerCPU is of all processes of the server, WorkerCPU of the process with the
	// handlers, the benchmark's books included; in microseconds.
	ServerCPU float64 `json:"server_cpu_us"`
	WorkerCPU float64 `json:"worker_cpu_us"`
}

// fields are the figures in the order in which they are printed.
func (c *cost) fields() []*float64 {
	return []*float64{&c.Statements, &c.Commits, &c.WALBytes, &c.DeadRows, &c.ServerCPU, &c.WorkerCPU}
}

// since is what was spent since an earlier reading, by so many deliveries.
func (c cost) since(before cost, deliveries int) *cost {
	was := before.fields()
	for i, f := range c.fields() {
		*f = (*f - *was[i]) / float64(deliveries)
	}
	return &c
}

// medianCost is the median of each figure. nil: there is none.
func medianCost(runs []outcome) *cost {
	var all []*cost
	for _, o := range runs {
		if o.Cost != nil && o.Error == "" {
			all = append(all, o.Cost)
		}
	}
	if len(all) == 0 {
		return nil
	}
	var m cost
	for i, f := range m.fields() {
		var values []float64
		for _, c := range all {
			values = append(values, *c.fields()[i])
		}
		*f = median(values)
	}
	return &m
}

// meter reads costs on a connection of its own. nil: costs are not asked for.
type meter struct {
	server *pgdev.Server
	conn   *pgx.Conn
	pool   *pgxpool.Pool // of the side, nil where it is in another process
	before cost
}

// meterName tells the meter's session from the side's.
const meterName = "bench meter"

// meter takes the first reading, once what was done before has been reported.
func (b *bench) meter(ctx context.Context, pool *pgxpool.Pool, own *pgxpool.Pool) (*meter, error) {
	if !b.Costs {
		return nil, nil
	}
	cfg := pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["application_name"] = meterName
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	m := &meter{server: b.server, conn: conn, pool: own}
	_, err = conn.Exec(ctx, "create extension if not exists pg_stat_statements")
	if err == nil {
		m.before, err = m.now(ctx)
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *meter) close() { _ = m.conn.Close(context.Background()) }

// read ends the measurement.
func (m *meter) read(ctx context.Context, deliveries int) (*cost, error) {
	if m == nil {
		return nil, nil
	}
	defer m.close()
	now, err := m.now(ctx)
	if err != nil {
		return nil, err
	}
	return now.since(m.before, deliveries), nil
}

// reported is how long sessions may take to end. Some sides keep a few to the
// end of their process: those report within a second of their last work, or not at all.
const reported = 3 * time.Second

func (m *meter) now(ctx context.Context) (cost, error) {
	// A session reports what it did at its end.
	if m.pool != nil {
		m.pool.Reset()
	}
	for begun := time.Now(); time.Since(begun) < reported; time.Sleep(20 * time.Millisecond) {
		var others int
		if err := m.conn.QueryRow(ctx, `select count(*) from pg_stat_activity where datname = current_database()
			and backend_type = 'client backend' and application_name <> $1`, meterName).Scan(&others); err != nil {
			return cost{}, err
		}
		if others == 0 {
			break
		}
	}
	var c cost
	// What begins and ends transactions is left out: of what is sent prepared, as by
	// Keyline, PostgreSQL 15 counts that the first time only, and each time of what is not, as by most others. Commits tell.
	err := m.conn.QueryRow(ctx, `select
		(select coalesce(sum(s.calls), 0) from pg_stat_statements s join pg_database d on d.oid = s.dbid
			where d.datname = current_database() and s.toplevel
			and s.query !~* '^\s*(begin|start transaction|commit|rollback(?!\s+to))')::float8,
		(select xact_commit from pg_stat_database where datname = current_database())::float8,
		(pg_current_wal_insert_lsn() - '0/0')::float8,
		(select coalesce(sum(n_tup_upd + n_tup_del), 0) from pg_stat_user_tables)::float8`).Scan(&c.Statements, &c.Commits, &c.WALBytes, &c.DeadRows)
	if err != nil {
		return c, err
	}
	if c.ServerCPU, err = serverCPU(m.server.PID()); err != nil {
		return c, err
	}
	c.WorkerCPU, err = ownCPU()
	return c, err
}

// ownCPU is what this process has used, in microseconds.
func ownCPU() (float64, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return micros(u.Utime) + micros(u.Stime), nil
}

func micros(t syscall.Timeval) float64 { return float64(t.Sec)*1e6 + float64(t.Usec) }

// serverCPU is what a server and its processes have used, those that have ended
// included, in microseconds. Linux alone tells.
func serverCPU(pid int) (float64, error) {
	own, err := ticks(pid, 4)
	if err != nil {
		return 0, err
	}
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(children) == 0 {
		return 0, errors.Join(err, errors.New("the system does not say what processes the server has"))
	}
	for _, file := range children {
		list, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		for child := range strings.FieldsSeq(string(list)) {
			n, err := strconv.Atoi(child)
			if err != nil {
				return 0, err
			}
			used, err := ticks(n, 2)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue // it has just ended
			}
			if err != nil {
				return 0, err
			}
			own += used
		}
	}
	return own, nil
}

// ticks sums a process's times in the user's and the system's mode: two, or
// four with those of its children that have ended.
func ticks(pid, fields int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in brackets may have spaces; the times are the 14th field on.
	_, rest, ok := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), ") ")
	list := strings.Fields(rest)
	if !ok || len(list) < 15 {
		return 0, fmt.Errorf("process %d: cannot read its times", pid)
	}
	var sum float64
	for _, field := range list[11 : 11+fields] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum * microsPerTick, nil
}

// microsPerTick: the kernel tells times in hundredths of a second, whatever it counts in.
const microsPerTick = 1e4
