// Package faults makes consumers fail on purpose, from outside: neither the
// domain nor the consumers know of it. The demo and the tests wrap the
// consumers that they run.
package faults

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/internal/wrap"
)

// Match chooses deliveries.
type Match func(*keyline.Delivery) bool

// All chooses what each of some matches does.
func All(matches ...Match) Match {
	return func(d *keyline.Delivery) bool {
		return !slices.ContainsFunc(matches, func(m Match) bool { return !m(d) })
	}
}

// Type chooses events by their type, as a glob: "activity.*".
func Type(glob string) Match {
	return func(d *keyline.Delivery) bool {
		ok, err := path.Match(glob, d.Type)
		return err == nil && ok
	}
}

// Subject chooses the events of activities whose subject contains a text.
func Subject(text string) Match {
	return func(d *keyline.Delivery) bool {
		var payload struct {
			Subject string `json:"subject"`
		}
		return json.Unmarshal(d.Payload, &payload) == nil && strings.Contains(payload.Subject, text)
	}
}

// Rule is what goes wrong with the deliveries that it matches.
type Rule struct {
	// Match chooses the deliveries; nil: all.
	Match Match
	// Consumers are the consumers that it is about; none: all.
	Consumers []string
	// Fail is called in place of the handler, and its error is the outcome; where
	// it returns nil the handler runs.
	Fail func(context.Context, *keyline.Delivery) error
}

// The errors of Transient and Poison.
var (
	ErrTransient = errors.New("injected: a failure that passes")
	ErrPoison    = errors.New("injected: a failure that stays")
)

// Transient lets the first n runs of a delivery fail.
func Transient(match Match, n int, consumers ...string) Rule {
	return Rule{Match: match, Consumers: consumers, Fail: func(_ context.Context, d *keyline.Delivery) error {
		if d.Attempt <= n {
			return ErrTransient
		}
		return nil
	}}
}

// Poison makes each run of a delivery fail for good: it becomes a dead letter.
func Poison(match Match, consumers ...string) Rule {
	return Rule{Match: match, Consumers: consumers, Fail: func(context.Context, *keyline.Delivery) error {
		return keyline.Permanent(ErrPoison)
	}}
}

// Panic makes each run of a delivery panic.
func Panic(match Match, consumers ...string) Rule {
	return Rule{Match: match, Consumers: consumers, Fail: func(context.Context, *keyline.Delivery) error { panic("injected: a panic") }}
}

func (r Rule) applies(d *keyline.Delivery) bool {
	return (len(r.Consumers) == 0 || slices.Contains(r.Consumers, d.Consumer)) && (r.Match == nil || r.Match(d))
}

// Inject returns the consumers with the rules in front of their handlers. A
// batch fails as a whole where one of its events does, as it would by itself.
func Inject(consumers []keyline.Consumer, rules ...Rule) []keyline.Consumer {
	return wrap.Each(consumers, func(_ keyline.Consumer, next wrap.Handler) wrap.Handler {
		return func(ctx context.Context, tx pgx.Tx, batch []*keyline.Delivery) error {
			for _, d := range batch {
				for _, r := range rules {
					if !r.applies(d) {
						continue
					}
					if err := r.Fail(ctx, d); err != nil {
						return err
					}
				}
			}
			return next(ctx, tx, batch)
		}
	})
}
