package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
)

// ScenarioConfig is how a scenario runs.
type ScenarioConfig struct {
	Config
	// Scale multiplies the numbers of records and events that a scenario has by
	// itself, so that it can be tried in a moment; figures below 1 are others.
	Scale float64
	// Duration is how long appenders append, in the scenarios where they do.
	Duration time.Duration
}

// Scenario is a benchmark of one aspect.
type Scenario struct {
	Name, Short, Long string
	run               func(context.Context, *play) error
}

// play is a scenario under way.
type play struct {
	*stage
	scale    float64
	duration time.Duration
	report   *Report
	// before opens something in a turn's database that stays open until its end; nil: nothing.
	before func(ctx context.Context, url string) (end func() error, err error)
}

// Scenarios are all there are, apart from the drain.
func Scenarios() []Scenario {
	return []Scenario{
		{"hot", "Drain few records with long streams", "Drains 200 records of 1,000 events and one record of 10,000, with windows of 1 and of 64: how fast a record is whose\nevents may not run beside each other.", hot},
		{"append", "Append beside workers that are absent, keep up, or are blocked", "32 clients append, one event per transaction: with the wake as it is, without any, and with a NOTIFY in each; beside no\nworker, one that keeps up, and one whose handlers are all blocked.", appends},
		{"latency", "From commit to handler, at 50, 500 and 2,000 events per second", "Appends at a steady rate that does not wait for anything, and measures from the commit to the start of the handler, after a second that is not measured.", latency},
		{"pinned", "Drain while an old transaction keeps vacuum from removing anything", "Drains a million records, alone and beside a transaction that was open before: how the rate holds as dead rows pile up.", pinned},
		{"blocked", "Drain healthy records beside others that are stuck", "Drains 200,000 healthy records: alone, beside a parked record with 100,000 events behind it, beside 1,000 parked records,\nand beside 300,000 that are in backoff.", blocked},
		{"backlog", "Drain ten million events", "Drains a million records of ten events: whether time stays linear, claims stay as quick, and memory stays flat.", backlog},
		{"scale", "Drain with 1, 2, 4 and 8 worker processes", "Drains 500,000 records with several processes on this one machine: what is done must not grow with their number.", scale},
		{"trouble", "How long deliveries wait where something is wrong", "Kills a worker that holds records, freezes one, restarts the server, appends without a wake, lets deliveries fail, and stops\nworkers; and measures how long it takes until all goes on. Needs a worker's default lease of 15 s several times; with a\n--scale below 1 the lease is shorter too.", trouble},
		{"footprint", "What a worker takes of memory and goroutines", "Memory per resident record and of an idle worker, goroutines, time from start to the first delivery, allocations per\ndelivery.", footprint},
	}
}

// Play runs a scenario.
func Play(ctx context.Context, sc Scenario, cfg ScenarioConfig) (report Report, err error) {
	err = onStage(ctx, cfg.Config, func(s *stage) error {
		p := &play{stage: s, scale: cfg.Scale, duration: cfg.Duration, report: &Report{Scenario: sc.Name}}
		if err := sc.run(ctx, p); err != nil {
			return err
		}
		p.report.Settings = s.settings
		p.report.Settings.Scale = cfg.Scale
		report = *p.report
		return nil
	})
	return report, err
}

// n is a number of records or events at the scenario's scale.
func (p *play) n(full int) int { return max(1, int(float64(full)*p.scale)) }

// option is one of the situations whose turns alternate.
type option struct {
	name string
	turn func(ctx context.Context, c *Case) error
}

// alternate lets every option have its turn in every run; who begins changes,
// so that none always has the warmer machine.
func (p *play) alternate(ctx context.Context, options ...option) error {
	for run := range p.Runs {
		for i := range options {
			o := options[(i+run)%len(options)]
			p.Step(fmt.Sprintf("run %d of %d: %s", run+1, p.Runs, o.name))
			if err := o.turn(ctx, p.report.of(o.name)); err != nil {
				return fmt.Errorf("%s, run %d: %w", o.name, run+1, err)
			}
		}
	}
	return nil
}

// drains is the turn that drains a copy of a template, and what it cost.
func (p *play) drains(template string, l workload, beside func(context.Context, *Case) func(context.Context, *tally)) func(context.Context, *Case) error {
	return func(ctx context.Context, c *Case) error {
		return p.turn(ctx, template, func(ctx context.Context, url string) (err error) {
			if p.before != nil {
				end, err := p.before(ctx, url)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, end()) }()
			}
			var with func(context.Context, *tally)
			if beside != nil {
				with = beside(ctx, c)
			}
			m, err := p.drive(ctx, url, l, with)
			if err != nil {
				return err
			}
			p.report.add(m.tally)
			c.add("events", "events/s", m.eventsPerS(l))
			deliveries := float64(l.deliveries())
			c.add("statements", "per delivery", float64(m.costs.statements)/deliveries)
			c.add("commits", "per delivery", float64(m.costs.commits)/deliveries)
			c.add("wal", "bytes per delivery", float64(m.costs.wal)/deliveries)
			return p.deadRows(ctx, url, c, deliveries)
		})
	}
}

// deadRows notes the rows that nobody sees any more and that vacuum has not taken.
func (p *play) deadRows(ctx context.Context, url string, c *Case, deliveries float64) error {
	return onConnection(ctx, url, func(conn *pgx.Conn) error {
		var dead int64
		if err := conn.QueryRow(ctx, "select coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables").Scan(&dead); err != nil {
			return fmt.Errorf("count dead rows: %w", err)
		}
		c.add("dead_rows", "per delivery", float64(dead)/deliveries)
		return nil
	})
}

// sound checks that a state which was put into a database by hand is one that the runtime makes.
func sound(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	o, err := keyline.NewOperator(pool, keyline.OperatorConfig{})
	if err != nil {
		return err
	}
	v, err := o.Verify(ctx, keyline.VerifyOptions{})
	if err != nil {
		return err
	}
	for _, c := range v.Checks {
		if c.Violations > 0 {
			return fmt.Errorf("the state to be measured is not sound: %s: %+v", c.Name, c.Sample)
		}
	}
	if !v.OK {
		return errors.New("the state to be measured is not sound")
	}
	return nil
}
