// Package traffic is people using the application: clients that create
// activities, change them and bring them to an end, all at once. It counts
// on its own what must have been appended.
package traffic

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/internal/clock"
)

// Marks in subjects, for faults.Subject.
const (
	Flaky  = "[flaky]"
	Poison = "[poison]"
)

// Config is how much traffic there is. Zero values are replaced by defaults.
type Config struct {
	// Clients work at the same time. Default 8.
	Clients int
	// Activities are open at a time; one that ends is replaced. Default 100.
	Activities int
	// Organizations share them. Default 3.
	Organizations int
	// Operations is how many succeed in all before Run returns. Default 0: until
	// its context ends.
	Operations int64
	// Pause is how long a client waits between two operations, on average.
	// Default 0.
	Pause time.Duration
	// Patience is how long a request is repeated while its outcome is not known:
	// the longest time that the database may be away. Default 5 s.
	Patience time.Duration
	// Flaky and Poison are how many of the first activities have that mark in
	// their subject.
	Flaky, Poison int
	// Seed decides what each client does. What the database makes of several at
	// once is not in it.
	Seed uint64
}

func (c *Config) setDefaults() {
	for field, value := range map[*int]int{&c.Clients: 8, &c.Activities: 100, &c.Organizations: 3} {
		if *field == 0 {
			*field = value
		}
	}
	if c.Patience == 0 {
		c.Patience = 5 * time.Second
	}
}

// Report is what happened.
type Report struct {
	Seed uint64 `json:"seed"`
	// Appended is how many operations succeeded, each with its one event;
	// ByRecord says on which record.
	Appended int64                 `json:"appended"`
	ByRecord map[keyline.Key]int64 `json:"-"`
	// Refused are operations that came too late: another client had changed the
	// activity. They append nothing.
	Refused int64 `json:"refused"`
	// Repeated are requests that were sent again, because their outcome was not known.
	Repeated int64 `json:"repeated"`
}

// Run makes traffic until ctx ends or enough operations have succeeded. An
// operation that has begun is always brought to a known end, so that the counts
// are exact. An error that is no refusal ends it all.
func Run(ctx context.Context, service *crm.Service, cfg Config) (Report, error) {
	cfg.setDefaults()
	r := &run{cfg: cfg, id: uuid.NewString(), service: service, clock: clock.Real(), slots: make([]*crm.Activity, cfg.Activities),
		report: Report{Seed: cfg.Seed, ByRecord: map[keyline.Key]int64{}}}
	clients, ctx := errgroup.WithContext(ctx)
	for i := range cfg.Clients {
		clients.Go(func() error {
			c := &client{run: r, name: fmt.Sprintf("client-%d", i), random: clock.NewRand(cfg.Seed + uint64(i)*0x9e3779b97f4a7c15)}
			if err := c.loop(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			return nil
		})
	}
	err := clients.Wait()
	return r.report, err
}

// run is what the clients share.
type run struct {
	cfg     Config
	id      string // apart from other runs on the same database
	service *crm.Service
	clock   clock.Clock

	mu      sync.Mutex
	slots   []*crm.Activity // as last seen; nil: to be created
	created int
	report  Report
}

// full says whether enough has succeeded.
func (r *run) full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cfg.Operations > 0 && r.report.Appended >= r.cfg.Operations
}

// take returns what a slot holds; where it is empty, the number of the activity
// to be created in it.
func (r *run) take(slot int) (a *crm.Activity, number int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slots[slot] != nil {
		seen := *r.slots[slot]
		return &seen, 0
	}
	r.created++
	return nil, r.created
}

// succeeded counts an event and keeps what the activity has become; one that
// is over makes room.
func (r *run) succeeded(slot int, a crm.Activity, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Appended++
	r.report.ByRecord[crm.Key(a.Organization, a.ID)]++
	switch held := r.slots[slot]; {
	case held != nil && held.ID != a.ID: // another client's, created at the same time
	case held != nil && held.Version > a.Version:
	case over:
		r.slots[slot] = nil
	default:
		r.slots[slot] = &a
	}
}

// refused keeps what the activity really is, for the next to decide on.
func (r *run) refused(slot int, seen crm.Activity, now *crm.Activity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Refused++
	if held := r.slots[slot]; held == nil || held.ID != seen.ID {
		return
	}
	r.slots[slot] = now
}

func (r *run) repeated() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Repeated++
}

// Verify returns an error where the streams do not hold exactly what was
// counted, on any record.
func (r Report) Verify(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, `
select r.tenant, r.record_key, r.head, count(e.seq), coalesce(max(e.seq), 0)
from keyline.records r left join keyline.events e on e.record_id = r.id
group by r.id, r.tenant, r.record_key, r.head`)
	if err != nil {
		return fmt.Errorf("read heads: %w", err)
	}
	defer rows.Close()
	found := 0
	for rows.Next() {
		var key keyline.Key
		var head, count, last int64
		if err := rows.Scan(&key.Tenant, &key.Record, &head, &count, &last); err != nil {
			return fmt.Errorf("read heads: %w", err)
		}
		want, mine := r.ByRecord[key]
		if !mine {
			continue // somebody else's
		}
		found++
		if head != want || count != want || last != want {
			return fmt.Errorf("record %s of %s: %d appended, but head %d, %d events, the last with seq %d", key.Record, key.Tenant, want, head, count, last)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read heads: %w", err)
	}
	if found != len(r.ByRecord) {
		return fmt.Errorf("%d of %d records are there", found, len(r.ByRecord))
	}
	return nil
}
