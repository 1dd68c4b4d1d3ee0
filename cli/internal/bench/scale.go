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
	template, err := p.fill(ctx, l, nil)
	if err != nil {
		return err
	}
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

// crowd is a turn of n processes. Its time begins when all of them are there,
// and ends when the last record has settled.
func (p *play) crowd(ctx context.Context, url string, l workload, n int, c *Case) (err error) {
	meter, err := p.meter(ctx, url)
	if err != nil {
		return err
	}
	defer meter.close(ctx)
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
	now := clock.Real()
	began := now.Mono()
	for _, w := range crowd {
		if _, err := io.WriteString(w.in, "go\n"); err != nil {
			return err
		}
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
	statements := int64(0)
	for _, w := range crowd {
		r, err := w.end()
		if err != nil {
			return err
		}
		verdict.OrderViolations += r.OrderViolations
		verdict.Duplicates += r.Duplicates
		statements += r.Statements
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
	if !p.statements {
		cost.statements = statements
	}
	c.add("events", "events/s", float64(l.total())/took.Seconds())
	c.add("statements", "per delivery", float64(cost.statements)/float64(l.deliveries()))
	c.add("commits", "per delivery", float64(cost.commits)/float64(l.deliveries()))
	c.add("wal", "bytes per delivery", float64(cost.wal)/float64(l.deliveries()))
	return nil
}

// process is a worker process, as its parent sees it.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startProcess returns once the process is ready to be told to go.
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

// processResult is what a process says at its end.
type processResult struct {
	OrderViolations int64    `json:"order_violations"`
	Duplicates      int64    `json:"duplicates"`
	Statements      int64    `json:"statements"`
	Seen            []uint64 `json:"seen"`
}

// RunProcess is the life of a worker process: it says that it is ready, works
// from the first line of in to its end, and writes what it saw.
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
	if _, err := io.WriteString(out, "ready\n"); err != nil {
		return err
	}
	lines := bufio.NewReader(in)
	if _, err := lines.ReadString('\n'); err != nil {
		return fmt.Errorf("nobody told to go: %w", err)
	}
	if err := w.Start(ctx); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, lines) // to its end
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_, stopErr := w.Stop(limited)
	if err := errors.Join(err, stopErr); err != nil {
		return err
	}
	r := processResult{OrderViolations: t.violations.Load(), Duplicates: t.duplicates.Load(), Statements: sent.n.Load(), Seen: make([]uint64, len(t.seen))}
	for i := range t.seen {
		r.Seen[i] = t.seen[i].Load()
	}
	return json.NewEncoder(out).Encode(r)
}
