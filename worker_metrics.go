package keyline

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/keylinehq/keyline/supervisor"
)

// Health is a worker as its operator sees it, without payloads.
type Health = supervisor.Health

// Health is the worker's present state; state "starting" before Start.
func (w *Worker) Health() Health {
	if !w.running() {
		return Health{State: "starting"}
	}
	return w.parts.supervisor.Health()
}

// workerGauges are the metrics that are read when somebody collects them. Those
// of the database are the same from every worker: take the maximum over workers, not the sum.
type workerGauges struct {
	resident, oldest, dead, parked metric.Float64ObservableGauge
	breaker, unhosted              metric.Float64ObservableGauge
	claims, claimed, settled       metric.Float64ObservableCounter
	handedBack, fenced, recovered  metric.Float64ObservableCounter
	wakes                          metric.Float64ObservableCounter
}

// startMetrics registers the worker's gauges; the result takes them off again.
func (w *Worker) startMetrics(p *parts) (stop func() error, err error) {
	meter := orGlobalMeters(w.cfg.MeterProvider).Meter(instrumentation)
	var g workerGauges
	var instruments []metric.Observable
	gauge := func(dst *metric.Float64ObservableGauge, name, unit, description string) {
		i, makeErr := meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
		if makeErr != nil && err == nil {
			err = fmt.Errorf("keyline: make metric %s: %w", name, makeErr)
		}
		*dst, instruments = i, append(instruments, i)
	}
	counter := func(dst *metric.Float64ObservableCounter, name, unit, description string) {
		i, makeErr := meter.Float64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		if makeErr != nil && err == nil {
			err = fmt.Errorf("keyline: make metric %s: %w", name, makeErr)
		}
		*dst, instruments = i, append(instruments, i)
	}
	gauge(&g.resident, "keyline.worker.records", "{record}", "Records that this worker has claimed")
	gauge(&g.breaker, "keyline.breaker.state", "1", "Circuit breaker of a consumer in this worker: 0 closed, 0.5 half open, 1 open")
	gauge(&g.oldest, "keyline.mailbox.oldest_age", "s", "How long the oldest due record has been waiting to be claimed")
	gauge(&g.dead, "keyline.dead_letters.open", "{delivery}", "Dead letters that nobody has resolved, at most 10,001")
	gauge(&g.unhosted, "keyline.consumer.unhosted", "{consumer}", "1 for a consumer that is to run and that no live worker runs, else 0")
	gauge(&g.parked, "keyline.records.blocked", "{record}", "Parked (record, consumer) pairs, at most 10,001")
	counter(&g.claims, "keyline.claims", "{call}", "Claim calls")
	counter(&g.claimed, "keyline.claims.records", "{record}", "Records claimed")
	counter(&g.settled, "keyline.records.settled", "{record}", "Records on which everything was done")
	counter(&g.handedBack, "keyline.records.handed_back", "{record}", "Records handed back with work left")
	counter(&g.fenced, "keyline.flushes.fenced", "{record}", "Records whose claim was lost before their outcome was written")
	counter(&g.recovered, "keyline.claims.recovered", "{record}", "Claims of workers that were not live, freed by this one")
	counter(&g.wakes, "keyline.wakes", "{wake}", "What the claim loop was woken by")
	if err != nil {
		return nil, err
	}
	r, err := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error { return g.observe(ctx, o, p) }, instruments...)
	if err != nil {
		return nil, fmt.Errorf("keyline: register metrics: %w", err)
	}
	return r.Unregister, nil
}

// breakerStates are a breaker's states as numbers.
var breakerStates = map[supervisor.BreakerState]float64{
	supervisor.BreakerClosed: 0, supervisor.BreakerHalfOpen: 0.5, supervisor.BreakerOpen: 1,
}

// backlogWait is how long a collection waits for the database: less than a scrape does.
const backlogWait = 5 * time.Second

func (g *workerGauges) observe(ctx context.Context, o metric.Observer, p *parts) error {
	h := p.supervisor.Health()
	o.ObserveFloat64(g.resident, float64(h.Resident))
	for _, c := range h.Consumers {
		o.ObserveFloat64(g.breaker, breakerStates[c.Breaker], metric.WithAttributes(attribute.String("messaging.consumer.group.name", c.Name)))
	}
	o.ObserveFloat64(g.claims, float64(h.Claims))
	o.ObserveFloat64(g.claimed, float64(h.Claimed))
	o.ObserveFloat64(g.settled, float64(h.Settled))
	o.ObserveFloat64(g.handedBack, float64(h.HandedBack))
	o.ObserveFloat64(g.fenced, float64(h.FencedClaims))
	o.ObserveFloat64(g.recovered, float64(h.Recovered))
	for cause, n := range h.Wakes {
		o.ObserveFloat64(g.wakes, float64(n), metric.WithAttributes(attribute.String("keyline.wake.cause", cause)))
	}
	// A database that hangs must not keep back what is known without it.
	limited, cancel := context.WithTimeout(ctx, backlogWait)
	defer cancel()
	b, err := p.store.Backlog(limited)
	if err != nil {
		return err
	}
	o.ObserveFloat64(g.oldest, b.OldestAge.Seconds())
	o.ObserveFloat64(g.dead, float64(b.DeadLetters))
	o.ObserveFloat64(g.parked, float64(b.Parked))
	for name, unhosted := range b.Unhosted {
		value := 0.0
		if unhosted {
			value = 1
		}
		o.ObserveFloat64(g.unhosted, value, metric.WithAttributes(attribute.String("messaging.consumer.group.name", name)))
	}
	return nil
}
