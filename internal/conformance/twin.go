package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/sim"
	"github.com/keylinehq/keyline/keylinetype"
)

// Twin is the in-memory twin of the store as an installation.
func Twin(t *testing.T) Installation {
	return &twin{t: t, Twin: sim.NewTwin(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), keylinetype.Independent), records: map[string]int64{}}
}

type twin struct {
	t *testing.T
	*sim.Twin
	records map[string]int64
}

// tick moves time on a little, as it does between two statements.
func (w *twin) tick() { w.Twin.Now = w.Twin.Now.Add(time.Millisecond) }

func (w *twin) Now() time.Time { return w.Twin.Now }

func (w *twin) Advance(d time.Duration) { w.Twin.Now = w.Twin.Now.Add(d) }

func (w *twin) record(key string) int64 {
	if _, ok := w.records[key]; !ok {
		w.records[key] = w.NewRecord(keylinetype.Key{Record: key})
	}
	return w.records[key]
}

func (w *twin) Append(key string, events ...sim.NewEvent) int64 {
	w.Begin(key, events...).Commit()
	return w.records[key]
}

func (w *twin) Begin(key string, events ...sim.NewEvent) Appender {
	w.tick()
	a := w.BeginAppend(w.record(key), events...)
	if a == nil {
		w.t.Fatalf("append: record %s is held", key)
	}
	return a
}

func (w *twin) Register(c core.Consumer) int32 {
	w.tick()
	c.Revision = 1
	return w.Twin.Register(c)
}

func (w *twin) Revise(id int32, change func(*core.Consumer)) {
	w.tick()
	w.Update(id, change)
}

func (w *twin) SetStatus(id int32, to core.Status) bool {
	w.tick()
	return w.Twin.SetStatus(id, to)
}

func (w *twin) Sweep() {
	w.tick()
	w.SweepAll(100)
}

func (w *twin) Command(c core.Command) int64 {
	w.tick()
	id := w.Twin.Command(c)
	if id == 0 {
		w.t.Fatalf("command: record %d is held", c.Record)
	}
	return id
}

func (w *twin) Process(hosts map[string]int) Process {
	local := make(map[string]sim.Local, len(hosts))
	for name, revision := range hosts {
		local[name] = sim.Local{Revision: revision, Window: 1}
	}
	p := &twinProcess{w: w, Leases: sim.Leases{Twin: w.Twin}, Deliveries: &sim.Deliveries{Twin: w.Twin, Local: local}}
	id, err := p.Join(w.t.Context(), core.Worker{Name: "w", Lease: Lease})
	if err != nil {
		w.t.Fatal(err)
	}
	p.Become(id)
	return p
}

type twinProcess struct {
	w *twin
	sim.Leases
	*sim.Deliveries
}

func (p *twinProcess) Worker() int64 { return p.Deliveries.Worker }

func (p *twinProcess) Become(worker int64) { p.Deliveries.Worker = worker }

func (p *twinProcess) Claim(ctx context.Context, r core.ClaimRequest) ([]core.Claim, error) {
	p.w.tick()
	return p.Deliveries.Claim(ctx, r)
}

func (p *twinProcess) ClaimRecord(ctx context.Context, r core.ClaimRequest, limit int) ([]core.Claim, []core.Loaded, error) {
	p.w.tick()
	return p.Deliveries.ClaimRecord(ctx, r, limit)
}

func (p *twinProcess) Apply(f core.Flush, epoch int64, lost bool) (res core.FlushResult) {
	p.w.tick()
	if lost {
		p.Flush(&f, epoch, func(r core.FlushResult) { res = r })
		if res.Rewritten {
			return res // what the database refuses is answered, and is written but once
		}
	}
	p.Flush(&f, epoch, func(r core.FlushResult) { res = r })
	return res
}

// Transact is what the simulator does in many steps: see sim's actions.
func (p *twinProcess) Transact(w *core.Work, handler func() error, book func(error) core.Booking) core.Outcome {
	p.w.tick()
	tx := p.w.BeginTx(p.Worker(), *w)
	if tx == nil {
		return core.Outcome{Err: keylinetype.ErrFenced, Fenced: true}
	}
	err := handler()
	b := book(err)
	if tx.Commit(&b) {
		return core.Outcome{Err: err, Booked: &b}
	}
	b = book(nil)
	if mine, has := p.w.Look(p.Worker(), w, &b); mine && has {
		return core.Outcome{Booked: &b}
	}
	return core.Outcome{Err: err, Fenced: true}
}
