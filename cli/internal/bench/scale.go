package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/bits"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
)

// WorkerCommand is the hidden subcommand of bench that is one of many processes.
const WorkerCommand = "worker-process"

func scale(ctx context.Context, p *play) error {
	l := workload{records: p.n(500_000), events: 1, consumers: 1}
	p.Step("fill the database")
	template, err := p.fill(ctx, l, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "truncate keyline.mailboxes") // crowd makes them
		return err
	})
	if err != nil {
		return err
	}
	p.settings.StatementsFrom = "client"
	var options []option
	for _, n := range []int{1, 2, 4, 8} {
		options = append(options, option{processes(n), func(ctx context.Context, c *Case) error {
			return p.turn(ctx, template, func(ctx context.Context, url string) error { return p.crowd(ctx, url, l, n, c) })
		}})
	}
	if err := p.alternate(ctx, options...); err != nil {
		return err
	}
	p.report.atLeast("the rate of 8 processes, of that of one", 0.7, p.report.ratio("events", processes(8), processes(1)))
	p.report.atMost("statements per delivery of 8 processes, of those of one", 1.1, p.report.ratio("statements", processes(8), processes(1)))
	p.report.atMost("commits per delivery of 8 processes, of those of one", 1.1, p.report.ratio("commits", processes(8), processes(1)))
	return nil
}

func processes(n int) string { return fmt.Sprintf("%d worker processes", n) }

// crowd is a turn of n processes. They have joined before there is any work, so
// that what is counted is what the work costs, and not how long it takes them to
// start, n times, on the same cores. Then all records become due at once; the turn's time
// ends when the last of them has settled.
func (p *play) crowd(ctx context.Context, url string, l workload, n int, c *Case) (err error) {
	var crowd []*process
	defer func() {
		for _, w := range crowd {
			w.kill()
		}
	}()
	for range n {
		w, err := startProcess(ctx, url, fmt.Sprint(l.records))
		if err != nil {
			return err
		}
		crowd = append(crowd, w)
	}
	meter, err := p.meter(ctx, url)
	if err != nil {
		return err
	}
	defer meter.close(ctx)
	for _, w := range crowd {
		if err := w.count(); err != nil {
			return err
		}
	}
	now := clock.Real()
	var began time.Duration
	err = pgx.BeginFunc(ctx, meter.conn, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, sqlRelease).Scan(&meter.before.wal); err != nil {
			return err
		}
		began = now.Mono()
		return nil
	})
	if err != nil {
		return fmt.Errorf("make the records due: %w", err)
	}
	for settled := false; !settled; {
		if err := clock.Sleep(ctx, now, settledPoll); err != nil {
			return err
		}
		if settled, err = meter.settled(ctx); err != nil {
			return err
		}
	}
	took := now.Mono() - began
	all := make([]uint64, l.records)
	var verdict Verdict
	var sent costs
	for _, w := range crowd {
		r, err := w.end()
		if err != nil {
			return err
		}
		verdict.OrderViolations += r.OrderViolations
		verdict.Duplicates += r.Duplicates
		sent.statements += r.Statements
		sent.commits += r.Commits
		for i, word := range r.Seen {
			verdict.Duplicates += int64(bits.OnesCount64(all[i] & word)) // two processes had it
			all[i] |= word
		}
	}
	verdict.Lost = l.deliveries()
	for _, word := range all {
		verdict.Lost -= int64(bits.OnesCount64(word))
	}
	p.report.OrderViolations += verdict.OrderViolations
	p.report.Duplicates += verdict.Duplicates
	p.report.Lost += verdict.Lost
	cost, err := meter.read(ctx, now)
	if err != nil {
		return err
	}
	c.add("events", "events/s", float64(l.total())/took.Seconds())
	c.add("statements", "per delivery", float64(sent.statements)/float64(l.deliveries()))
	c.add("commits", "per delivery", float64(sent.commits)/float64(l.deliveries()))
	c.add("wal", "bytes per delivery", float64(cost.wal)/float64(l.deliveries()))
	return nil
}

// process is a worker process, as its parent sees it.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startProcess returns once the process's worker has joined.
func startProcess(ctx context.Context, url string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"bench", WorkerCommand}, args...)...) //nolint:gosec // this program
	cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
	cmd.Stderr = os.Stderr
	w := &process{cmd: cmd}
	if w.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := w.out.ReadString('\n'); err != nil {
		w.kill()
		return nil, fmt.Errorf("a worker process did not start: %w", err)
	}
	return w, nil
}

// count lets the process count what it sends from here on, and returns when it does.
func (w *process) count() error {
	if _, err := io.WriteString(w.in, "count\n"); err != nil {
		return err
	}
	if _, err := w.out.ReadString('\n'); err != nil {
		return fmt.Errorf("a worker process has ended: %w", err)
	}
	return nil
}

// end lets the process stop its worker and returns what it saw.
func (w *process) end() (r processResult, err error) {
	if err := w.in.Close(); err != nil {
		return r, err
	}
	if err := json.NewDecoder(w.out).Decode(&r); err != nil {
		return r, fmt.Errorf("what a worker process saw: %w", err)
	}
	return r, w.cmd.Wait()
}

func (w *process) kill() {
	if w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	}
}

// processResult is what a process says at its end. Statements and Commits are
// what it has sent since it was told to count, until it was told to stop; the server's own
// counts of a session's commits come up to ten seconds late.
type processResult struct {
	OrderViolations int64    `json:"order_violations"`
	Duplicates      int64    `json:"duplicates"`
	Statements      int64    `json:"statements"`
	Commits         int64    `json:"commits"`
	Seen            []uint64 `json:"seen"`
}

// RunProcess is the life of a worker process: it works, says so, counts from the first line of in to its end, and
// writes what it saw.
func RunProcess(ctx context.Context, url string, records int, in io.Reader, out io.Writer, log *slog.Logger) error {
	l := workload{records: records, events: 1, consumers: 1}
	cfg, err := poolConfig(url)
	if err != nil {
		return err
	}
	sent := &counter{}
	cfg.ConnConfig.Tracer = sent
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	t := newTally(l)
	w, err := keyline.NewWorker(pool, keyline.Config{Logger: log, TracerProvider: noop.NewTracerProvider()}, consumers(t, l)...)
	if err != nil {
		return err
	}
	if err := w.Start(ctx); err != nil {
		return err
	}
	err = countUntilTold(sent, in, out)
	counted := sent.now()
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_, stopErr := w.Stop(limited)
	if err := errors.Join(err, stopErr); err != nil {
		return err
	}
	r := processResult{OrderViolations: t.violations.Load(), Duplicates: t.duplicates.Load(), Statements: counted.statements, Commits: counted.commits,
		Seen: make([]uint64, len(t.seen))}
	for i := range t.seen {
		r.Seen[i] = t.seen[i].Load()
	}
	return json.NewEncoder(out).Encode(r)
}

// countUntilTold starts the count at in's first line and returns at its end.
func countUntilTold(sent *counter, in io.Reader, out io.Writer) error {
	if _, err := io.WriteString(out, "joined\n"); err != nil {
		return err
	}
	lines := bufio.NewReader(in)
	if _, err := lines.ReadString('\n'); err != nil {
		return fmt.Errorf("nobody told to count: %w", err)
	}
	sent.restart()
	if _, err := io.WriteString(out, "counting\n"); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, lines)
	return err
}
