package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/cli/internal/scratch"
	"github.com/keylinehq/keyline/examples/crm/recorder"
	"github.com/keylinehq/keyline/examples/crm/traffic"
	"github.com/keylinehq/keyline/internal/clock"
)

// SoakResult is what a soak has found.
type SoakResult struct {
	OK       bool   `json:"ok"`
	Seed     uint64 `json:"seed"`
	Appended int64  `json:"appended"`
	Expected int64  `json:"expected"`
	// Delivered, Redelivered, Dead: of all consumers. A handler whose database went away has failed, and
	// has its runs like any other: with chaos there may be dead letters, and they are no violation.
	Delivered       int64 `json:"delivered"`
	Redelivered     int64 `json:"redelivered"`
	Dead            int64 `json:"dead_letters"`
	OrderViolations int64 `json:"order_violations"`
	Lost            int64 `json:"lost"`
	// Unexplained are the repetitions among Redelivered between which nothing had happened to a worker.
	Unexplained int `json:"unexplained"`
	// Faults are the faults by kind, Incarnations how many workers have joined, the processes' returns counted.
	Faults       map[string]int `json:"faults"`
	Incarnations int            `json:"incarnations"`
	// Checks is how often everything was looked at while there was traffic.
	Checks   int      `json:"checks"`
	Problems []string `json:"problems"`
}

// The pace of a soak.
const (
	checkEvery = 5 * time.Second
	// Between faults there is time for their consequences to begin, and no time for them to end.
	leastBetweenFaults = 500 * time.Millisecond
	mostBetweenFaults  = 4 * time.Second
	// patience is how long the database may be away, and how long everything may take to
	// settle. A restart takes seconds on a machine that is busy: what is merely slow is no violation.
	patience = 3 * time.Minute
	// lateness is how long rows may be as they must not stay.
	lateness = 30 * time.Second
)

// soak is a long run with faults.
type soak struct {
	*demo
	server *scratch.Server
	random *clock.Rand

	mu      sync.Mutex
	result  SoakResult
	outages []recorder.Outage // in which workers lost their sessions; read when chaos has ended
}

// Soak makes traffic for a long time, breaks something now and then if there is
// to be chaos, and looks all the while at what may never be. An error means that there is no verdict.
func Soak(ctx context.Context, cfg Config, chaos bool) (SoakResult, error) {
	s := &soak{random: clock.NewRand(cfg.Seed), result: SoakResult{Seed: cfg.Seed, Faults: map[string]int{}, Problems: []string{}}}
	err := open(ctx, cfg, func(ctx context.Context, d *demo, server *scratch.Server) error {
		s.demo, s.server = d, server
		s.show.say("%d worker processes, a CRM's traffic for %s, chaos %v. Seed %d.", cfg.Workers, cfg.Duration, chaos, cfg.Seed)
		return s.run(ctx, chaos)
	})
	s.result.OK = err == nil && len(s.result.Problems) == 0
	return s.result, err
}

// errViolation ends a soak before its time.
var errViolation = errors.New("a promise is broken")

func (s *soak) run(ctx context.Context, chaos bool) error {
	service, err := s.begin(ctx)
	if err != nil {
		return err
	}
	parts, working := errgroup.WithContext(ctx)
	playing, end := context.WithTimeout(working, s.Duration)
	defer end()
	parts.Go(func() (err error) {
		cfg := load(s.Seed)
		cfg.Poison, cfg.Flaky, cfg.Patience = 0, 0, patience
		s.traffic, err = traffic.Run(playing, service, cfg)
		return err
	})
	parts.Go(func() error { return s.checks(playing) })
	if chaos {
		parts.Go(func() error { return s.chaos(playing) })
	}
	if err := parts.Wait(); err != nil && !errors.Is(err, errViolation) {
		return err
	}
	s.show.say("traffic ends: %d events appended; waiting until everything has settled", s.traffic.Appended)
	if len(s.result.Problems) == 0 && !s.settle(ctx, patience) {
		s.broken("not everything had settled after %s", patience)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// Before the workers leave: until then, who has left was cut off.
	if err := s.repeats(ctx); err != nil {
		return err
	}
	grace, cancel := context.WithTimeout(ctx, 2*shutdownGrace)
	defer cancel()
	if err := s.cluster.stop(grace); err != nil {
		s.broken("%v", err)
	}
	return s.verdict(ctx)
}

func (s *soak) broken(format string, args ...any) {
	problem := fmt.Sprintf(format, args...)
	s.mu.Lock()
	s.result.Problems = append(s.result.Problems, problem)
	s.mu.Unlock()
	s.show.say("%s", bad.Render("BROKEN: "+problem))
}

// checks looks, while there is traffic, at what may not be at any time. What
// the database does not answer is asked again.
func (s *soak) checks(ctx context.Context) error {
	for clock.Sleep(ctx, s.Clock, checkEvery) == nil {
		if err := s.look(ctx, false); errors.Is(err, errViolation) {
			return err
		} else if err == nil {
			s.result.Checks++
		}
	}
	return nil
}

// look compares what handlers have recorded with what was appended, and the
// tables with what they must be.
func (s *soak) look(ctx context.Context, over bool) error {
	report, err := recorder.Check(ctx, s.pool)
	if err != nil {
		return err
	}
	operator, err := keyline.NewOperator(s.pool, keyline.OperatorConfig{Actor: "soak"})
	if err != nil {
		return err
	}
	verified, err := verify(ctx, s.demo, operator)
	if err != nil {
		return err
	}
	r, before := &s.result, len(s.result.Problems)
	r.Appended, r.Expected, r.Delivered, r.Redelivered, r.Dead, r.OrderViolations = report.Appended, report.Expected, report.Delivered,
		report.Redelivered, report.Dead, report.OrderViolations
	if r.OrderViolations > 0 {
		s.broken("%d deliveries came out of order", r.OrderViolations)
	}
	if report.Unexpected > 0 {
		s.broken("%d deliveries went to consumers that they did not concern", report.Unexpected)
	}
	if !verified.OK {
		s.broken("verify found %+v", verified)
	}
	if over && before == 0 { // else nothing has settled
		s.atTheEnd(report)
	}
	if len(r.Problems) > before {
		return errViolation
	}
	s.mu.Lock()
	faults := maps.Clone(r.Faults)
	s.mu.Unlock()
	s.show.say("%d events appended, %d of %d deliveries done, %d repeated; faults %v", r.Appended, r.Delivered, r.Expected, r.Redelivered, faults)
	return nil
}

// repeats looks for deliveries that were repeated though nothing had happened
// to their workers.
func (s *soak) repeats(ctx context.Context) error {
	var list []recorder.Repeat
	err := s.insist(ctx, func(ctx context.Context) (err error) {
		list, err = recorder.Unexplained(ctx, s.pool, s.outages)
		return err
	})
	s.result.Unexplained = len(list)
	for _, r := range list[:min(len(list), reportedRepeats)] {
		s.broken("repeated, and nothing had happened to its worker: %s", r)
	}
	if more := len(list) - reportedRepeats; more > 0 {
		s.broken("%d more deliveries were repeated, and nothing had happened to their workers", more)
	}
	return err
}

// reportedRepeats is how many repeated deliveries are told one by one.
const reportedRepeats = 5

// insist calls f again while it fails, for as long as the database may be away.
func (s *soak) insist(ctx context.Context, f func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var failed error
	err := s.until(limited, func(ctx context.Context) (bool, error) {
		if err := f(ctx); err != nil {
			if ctx.Err() == nil {
				failed = err
			}
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return errors.Join(err, failed)
	}
	return nil
}

// verify verifies until all is well, for as long as what is merely late may
// take: claims wait for their recovery while workers come back, one fault after another.
func verify(ctx context.Context, d *demo, operator keyline.Operator) (v keyline.Verification, err error) {
	began := d.Clock.Mono()
	err = d.until(ctx, func(ctx context.Context) (bool, error) {
		var err error
		v, err = operator.Verify(ctx, keyline.VerifyOptions{})
		return v.OK || d.Clock.Mono()-began > lateness, err
	})
	return v, err
}

func (s *soak) atTheEnd(report recorder.Report) {
	r := &s.result
	if r.Lost = report.Lost; r.Lost > 0 {
		s.broken("%d deliveries were lost", r.Lost)
	}
	if r.Appended == 0 || r.Appended != s.traffic.Appended {
		s.broken("%d events are in the streams, the application appended %d", r.Appended, s.traffic.Appended)
	}
	if r.Delivered+r.Dead != r.Expected {
		s.broken("%d deliveries and %d dead letters are not the %d expected", r.Delivered, r.Dead, r.Expected)
	}
}

func (s *soak) verdict(ctx context.Context) error {
	if err := s.pool.QueryRow(ctx, sqlIncarnations).Scan(&s.result.Incarnations); err != nil {
		return fmt.Errorf("count the workers: %w", err)
	}
	err := s.insist(ctx, func(ctx context.Context) error {
		if err := s.look(ctx, true); !errors.Is(err, errViolation) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.traffic.Verify(ctx, s.pool); err != nil {
		s.broken("the streams are not what was appended: %v", err)
	}
	if len(s.result.Problems) > 0 {
		for _, line := range s.cluster.complaints() {
			s.show.say("%s", line)
		}
	}
	return nil
}

// chaos breaks something, again and again.
func (s *soak) chaos(ctx context.Context) error {
	kinds := []struct {
		name string
		do   func(context.Context) error
	}{{"kill", s.killSome}, {"freeze", s.freezeSome}, {"terminate_backends", s.terminate}, {"restart_postgres", s.restart}}
	if !s.server.Embedded() {
		kinds = slices.Delete(kinds, 3, 4)
	}
	for {
		pause := leastBetweenFaults + time.Duration(s.random.Int64N(int64(mostBetweenFaults-leastBetweenFaults)))
		if clock.Sleep(ctx, s.Clock, pause) != nil {
			return nil
		}
		kind := kinds[s.random.IntN(len(kinds))]
		s.mu.Lock()
		s.result.Faults[kind.name]++
		s.mu.Unlock()
		s.show.say("%s", warn.Render(kind.name))
		// What has begun is brought to its end: a worker must not stay frozen.
		if err := kind.do(context.WithoutCancel(ctx)); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
	}
}

// some is a worker process that runs.
func (s *soak) some() *process {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	var running []*process
	for _, p := range s.cluster.workers {
		if p.running() {
			running = append(running, p)
		}
	}
	return running[s.random.IntN(len(running))] // every one that is killed is replaced
}

func (s *soak) killSome(ctx context.Context) error {
	if err := s.cluster.kill(s.some()); err != nil {
		return err
	}
	p, err := s.cluster.start()
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.await(limited)
}

// freezeSome stops a worker for less than its lease, or for longer.
func (s *soak) freezeSome(ctx context.Context) error {
	p := s.some()
	if err := p.freeze(); err != nil {
		return err
	}
	pause := time.Duration(s.random.Int64N(int64(3 * lease)))
	return errors.Join(clock.Sleep(ctx, s.Clock, pause), p.thaw())
}

// terminate ends every session of all workers, in the middle of whatever they do.
func (s *soak) terminate(ctx context.Context) error {
	return s.outage(ctx, func(ctx context.Context) error {
		return s.insist(ctx, func(ctx context.Context) error {
			_, err := s.pool.Exec(ctx, sqlTerminate)
			return err
		})
	})
}

// outage notes from when till when, by the database's clock, f took sessions away.
func (s *soak) outage(ctx context.Context, f func(context.Context) error) error {
	var o recorder.Outage
	now := func(t *time.Time) error {
		return s.insist(ctx, func(ctx context.Context) error {
			return s.pool.QueryRow(ctx, "select clock_timestamp()").Scan(t)
		})
	}
	if err := now(&o.From); err != nil {
		return err
	}
	if err := f(ctx); err != nil {
		return err
	}
	err := now(&o.To)
	s.outages = append(s.outages, o)
	return err
}

// restart restarts the server: all sessions end, and for a moment nobody answers.
func (s *soak) restart(ctx context.Context) error { return s.outage(ctx, s.server.Restart) }
