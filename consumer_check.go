package keyline

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

var consumerName = regexp.MustCompile(`\A[A-Za-z0-9._:-]{1,100}\z`)

// validate says what is wrong with a consumer's definition, if anything; the
// error's Field names the consumer and the field.
func (c Consumer) validate() error {
	for _, check := range []func(Consumer) *Error{
		Consumer.checkName, Consumer.checkEvents, Consumer.checkPolicies, Consumer.checkStart, Consumer.checkEffect,
		Consumer.checkRetry, Consumer.checkLocal, Consumer.checkHandler,
	} {
		if err := check(c); err != nil {
			name := c.Name
			if name == "" {
				name = "Consumer"
			}
			err.Field = name + "." + err.Field
			return err
		}
	}
	return nil
}

func wrong(field, format string, args ...any) *Error {
	return invalid(CodeInvalidArgument, field, format, args...)
}

func (c Consumer) checkName() *Error {
	if !consumerName.MatchString(c.Name) {
		return wrong("Name", "%q must match %s", c.Name, consumerName)
	}
	for _, n := range c.PreviousNames {
		if !consumerName.MatchString(n) {
			return wrong("PreviousNames", "%q must match %s", n, consumerName)
		}
		if n == c.Name {
			return wrong("PreviousNames", "contains the present name")
		}
	}
	if c.Revision < 0 || c.Revision > maxRevision {
		return wrong("Revision", "%d is out of range; it counts from 1", c.Revision)
	}
	return nil
}

func (c Consumer) checkEvents() *Error {
	if len(c.Types) == 0 {
		return wrong("Types", `is empty; "*" takes every type`)
	}
	for _, t := range c.Types {
		if err := checkText("Types", t, maxTypeBytes); err != nil {
			return err
		}
		if blank(t) {
			return wrong("Types", "has a blank type")
		}
	}
	if c.Versions != nil && len(c.Versions) == 0 {
		return wrong("Versions", "is empty; nil takes every version")
	}
	for _, v := range c.Versions {
		if v < 1 || v > maxVersion {
			return wrong("Versions", "%d is out of range; versions count from 1", v)
		}
	}
	return nil
}

func (c Consumer) checkPolicies() *Error {
	switch c.OnUnsupported {
	case "", SkipUnsupported, DeadLetterUnsupported, WaitUnsupported:
	default:
		return wrong("OnUnsupported", "unknown policy %q", c.OnUnsupported)
	}
	switch c.OnDead {
	case "", Advance, Park:
	default:
		return wrong("OnDead", "unknown policy %q", c.OnDead)
	}
	switch c.Scope {
	case "", OneForOne, AllForOne:
	default:
		return wrong("Scope", "unknown scope %q", c.Scope)
	}
	return nil
}

func (c Consumer) checkStart() *Error {
	switch c.Start.Kind {
	case "", StartNow, StartBeginning:
		if !c.Start.Time.IsZero() {
			return wrong("Start", "has a time, which only At takes")
		}
	case StartAt:
		if err := checkTime("Start", c.Start.Time); err != nil {
			return err
		}
	default:
		return wrong("Start", "unknown kind %q", c.Start.Kind)
	}
	if c.Effect.Class == EffectExternal && c.Start.Kind != "" && c.Start.Kind != StartNow && !c.CatchUp {
		return wrong("CatchUp", "is not set, and the consumer would act outside on events from before it: set it, or Start with Now()")
	}
	return nil
}

func (c Consumer) checkEffect() *Error {
	switch c.Effect.Class {
	case EffectDatabase, EffectNone:
	case EffectExternal:
		if c.Effect.Note == "" && c.Excluded == "" {
			return wrong("Effect", "External must say how duplicates are harmless; if they are not, set Excluded to why it does not run")
		}
	case "":
		return wrong("Effect", "is not declared: Database(), External(how duplicates are harmless) or None()")
	default:
		return wrong("Effect", "unknown class %q", c.Effect.Class)
	}
	return checkText("Effect", c.Effect.Note, 0)
}

// maxRevision is what the database can hold.
const maxRevision = math.MaxInt32

// maxWindow is the most events of one record that may be under way at once. The database counts what it reads ahead in 32 bits.
const maxWindow = 1_000_000

// maxRetryDelay keeps a delay, and a worker's settings, within what a due time can hold, with room.
const maxRetryDelay = 10 * 365 * 24 * time.Hour

func (c Consumer) checkRetry() *Error {
	if len(c.Retry.Delays) > 1000 {
		return wrong("Retry.Delays", "has %d entries, at most 1000", len(c.Retry.Delays))
	}
	for _, d := range c.Retry.Delays {
		if d < 0 || d > maxRetryDelay {
			return wrong("Retry.Delays", "%s is out of range", d)
		}
	}
	if j := c.Retry.Jitter; j != nil && !(*j >= 0 && *j <= 1) { // not a NaN either
		return wrong("Retry.Jitter", "%v is not between 0 and 1", *j)
	}
	return nil
}

func (c Consumer) checkLocal() *Error {
	b := c.Breaker
	if !(b.Threshold >= 0 && b.Threshold <= 1) {
		return wrong("Breaker.Threshold", "%v is not between 0 and 1", b.Threshold)
	}
	for _, n := range []struct {
		field string
		value int64
	}{
		{"Breaker.MinRuns", int64(b.MinRuns)}, {"Breaker.Period", int64(b.Period)}, {"Breaker.CoolDown", int64(b.CoolDown)},
		{"Window", int64(c.Window)}, {"BatchSize", int64(c.BatchSize)}, {"MaxInFlight", int64(c.MaxInFlight)}, {"Timeout", int64(c.Timeout)},
	} {
		if n.value < 0 {
			return wrong(n.field, "is negative")
		}
	}
	if c.BatchSize > maxWindow {
		return wrong("BatchSize", "%d is more than %d", c.BatchSize, maxWindow)
	}
	if c.Window > maxWindow {
		return wrong("Window", "%d is more than %d", c.Window, maxWindow)
	}
	if c.BatchSize != 0 && c.HandleBatch == nil {
		return wrong("BatchSize", "is for HandleBatch only")
	}
	if c.Window != 0 && c.HandleBatch != nil && c.Window < c.batchSize() {
		return wrong("Window", "%d is less than BatchSize %d", c.Window, c.batchSize())
	}
	return nil
}

func (c Consumer) checkHandler() *Error {
	var handlers []string
	for _, h := range []struct {
		name string
		set  bool
	}{{"Handle", c.Handle != nil}, {"HandleTx", c.HandleTx != nil}, {"HandleBatch", c.HandleBatch != nil}} {
		if h.set {
			handlers = append(handlers, h.name)
		}
	}
	switch {
	case c.ContractOnly && c.Excluded != "":
		return wrong("Excluded", "is for a consumer with a handler, not for a ContractOnly one")
	case c.ContractOnly && len(handlers) > 0:
		return wrong(handlers[0], "is set on a ContractOnly consumer, which has no handler")
	case c.ContractOnly:
		return nil
	case len(handlers) == 0:
		return wrong("Handle", "exactly one of Handle, HandleTx and HandleBatch must be set (none: ContractOnly)")
	case len(handlers) > 1:
		return wrong(handlers[1], "exactly one handler must be set; %s is set too", handlers[0])
	case c.HandleTx != nil && c.Effect.Class != EffectDatabase:
		return wrong("Effect", "HandleTx needs Database(): what happens outside does not commit with the transaction")
	}
	return nil
}

// validateConsumers checks each consumer, and that no two share a name, present
// or previous.
func validateConsumers(consumers []Consumer) error {
	owner := map[string]string{}
	for _, c := range consumers {
		if err := c.validate(); err != nil {
			return err
		}
		for i, n := range append([]string{c.Name}, c.PreviousNames...) {
			if other, taken := owner[n]; taken {
				field := "Name"
				if i > 0 {
					field = "PreviousNames"
				}
				return wrong(c.Name+"."+field, "%q is a name of %s already", n, other)
			}
			owner[n] = c.Name
		}
	}
	return nil
}

// runsHere reports whether this process is to run the consumer. Whether it may is for the registry to say.
func (c Consumer) runsHere() bool { return !c.ContractOnly && c.Excluded == "" }

func (c Consumer) batchSize() int {
	switch {
	case c.HandleBatch == nil:
		return 1
	case c.BatchSize == 0:
		return DefaultBatchSize
	}
	return c.BatchSize
}

// toCore returns the consumer as the runtime knows it, defaults filled in,
// without its ID and Status, which the registry gives it. Lists are in one order,
// so that writing them differently is no change of the definition.
func (c Consumer) toCore() core.Consumer {
	jitter := DefaultJitter
	if c.Retry.Jitter != nil {
		jitter = *c.Retry.Jitter
	}
	delays := DefaultRetryDelays()
	if c.Retry.Delays != nil {
		delays = make([]time.Duration, len(c.Retry.Delays))
		for i, d := range c.Retry.Delays {
			delays[i] = (d + time.Millisecond - 1).Truncate(time.Millisecond) // as the database keeps it; never 0 for more
		}
	}
	effect := c.Effect
	if effect.Class == EffectExternal && effect.Note == "" {
		effect.Note = "excluded: " + c.Excluded
	}
	start := c.Start
	if start.Kind == "" {
		start.Kind = StartNow
	}
	return core.Consumer{
		Name:          c.Name,
		Revision:      max(c.Revision, 1),
		Types:         slices.Compact(slices.Sorted(slices.Values(c.Types))),
		Versions:      slices.Compact(slices.Sorted(slices.Values(c.Versions))),
		OnUnsupported: orDefault(c.OnUnsupported, SkipUnsupported),
		Start:         start,
		Effect:        effect,
		Retry:         RetryPolicy{Delays: delays, Jitter: &jitter},
		OnDead:        orDefault(c.OnDead, Advance),
		Scope:         orDefault(c.Scope, OneForOne),
		Transactional: c.HandleTx != nil,
		ContractOnly:  c.ContractOnly,
		Internal:      c.Internal,
		Hosted:        c.runsHere(),
		Window:        max(c.Window, c.batchSize(), DefaultWindow),
		BatchSize:     c.batchSize(),
	}
}

func orDefault[T ~string](v, fallback T) T {
	if v == "" {
		return fallback
	}
	return v
}

// decode reads a payload into a T. The error says where, not what: error texts
// are kept with dead letters, which hold no payload.
func decode[T any](d *Delivery) (v T, err error) {
	if err = json.Unmarshal(d.Payload, &v); err == nil {
		return v, nil
	}
	message := fmt.Sprintf("does not decode into %T", v)
	if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) {
		kind, _, _ := strings.Cut(mismatch.Value, " ") // a number's value follows
		message += fmt.Sprintf(": %s at %q where %s belongs", kind, mismatch.Field, mismatch.Type)
	}
	return v, keylinetype.Permanent(&Error{Code: CodeIncompatiblePayload, Field: "Payload", Message: message, class: ErrInvalid, cause: err})
}
