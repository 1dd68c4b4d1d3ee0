package core

import (
	"slices"
	"time"

	"github.com/keylinehq/keyline/keylinetype"
)

// Status is a consumer's status in the registry.
type Status string

// The statuses of a consumer.
const (
	Active      Status = "active"
	Paused      Status = "paused"   // keeps its place
	Disabled    Status = "disabled" // events pass as ignored
	Backfilling Status = "backfilling"
	Retired     Status = "retired" // final
)

// Consumer is a registered consumer, with what is local to this process.
type Consumer struct {
	ID            int32
	Name          string
	Status        Status
	Revision      int
	Types         []string // globs
	Versions      []int    // nil: all
	OnUnsupported keylinetype.Unsupported
	Start         keylinetype.Start
	Effect        keylinetype.Effect
	Retry         keylinetype.RetryPolicy // resolved: Delays and Jitter set
	OnDead        keylinetype.OnDead
	Scope         keylinetype.Scope
	// Transactional consumers (HandleTx) always keep a checkpoint row.
	Transactional bool
	// ContractOnly: declared, hosted by nobody, never applies.
	ContractOnly bool
	// Internal grants internal-only event types.
	Internal bool

	// Local to this process:

	// Hosted is true where this process runs it (and its revision is current).
	Hosted bool
	// Window is how many events may run beyond what is flushed, at least 1 and
	// at least BatchSize.
	Window int
	// BatchSize above 1: HandleBatch.
	BatchSize int

	matcher matcher
}

// Registry is the registered consumers at one epoch. It is immutable: a new
// epoch is a new Registry.
type Registry struct {
	Epoch     int64
	Ordering  keylinetype.Ordering
	Consumers []*Consumer // ascending by ID
	// InternalTypes are the event types marked internal-only.
	InternalTypes map[string]bool

	byID map[int32]*Consumer
}

// NewRegistry builds the lookups of a registry.
func NewRegistry(epoch int64, ordering keylinetype.Ordering, consumers []*Consumer, internal map[string]bool) *Registry {
	r := &Registry{Epoch: epoch, Ordering: ordering, Consumers: consumers, InternalTypes: internal,
		byID: make(map[int32]*Consumer, len(consumers))}
	for _, c := range consumers {
		c.matcher = newMatcher(c.Types)
		c.Window = max(c.Window, c.BatchSize, 1)
		c.BatchSize = max(c.BatchSize, 1)
		r.byID[c.ID] = c
	}
	return r
}

// Consumer returns the consumer with this id, or nil.
func (r *Registry) Consumer(id int32) *Consumer { return r.byID[id] }

// Applicability is what a consumer does with an event before it runs.
type Applicability int

// The applicabilities.
const (
	NotApplicable      Applicability = iota // passes as ignored
	Applies                                 // is delivered
	UnsupportedVersion                      // by OnUnsupported
)

// Applies says whether an event concerns a consumer. Status is not looked at,
// except that a contract-only consumer never applies.
func (r *Registry) Applies(c *Consumer, eventType string, version int) Applicability {
	if c.ContractOnly || !c.matcher.match(eventType) {
		return NotApplicable
	}
	if !c.Internal && r.InternalTypes[eventType] {
		return NotApplicable
	}
	if c.Versions == nil || slices.Contains(c.Versions, version) {
		return Applies
	}
	return UnsupportedVersion
}

// Worker is one process incarnation, as registered.
type Worker struct {
	ID        int64
	Name      string
	Host      string
	PID       int
	Lease     time.Duration
	Consumers []string // names of those that it hosts
}
