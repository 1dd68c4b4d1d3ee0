package traffic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/internal/clock"
)

// client is one of those who work at the same time.
type client struct {
	*run
	name     string
	random   *clock.Rand
	requests int
}

func (c *client) loop(ctx context.Context) error {
	for ctx.Err() == nil && !c.full() {
		slot := c.random.IntN(len(c.slots))
		// What has begun is finished, whatever becomes of ctx.
		if err := c.operate(context.WithoutCancel(ctx), slot); err != nil {
			return err
		}
		if c.cfg.Pause > 0 {
			pause := time.Duration(2 * c.random.Float64() * float64(c.cfg.Pause))
			if clock.Sleep(ctx, c.clock, pause) != nil {
				return nil
			}
		}
	}
	return nil
}

// The pauses before a request whose outcome is not known is repeated: each is
// longer than the one before by repeatPause, up to longestPause.
const (
	repeatPause  = 50 * time.Millisecond
	longestPause = 500 * time.Millisecond
)

// operate does one plausible thing to the activity of a slot.
func (c *client) operate(ctx context.Context, slot int) error {
	seen, number := c.take(slot)
	act, over := c.choose(seen, number)
	c.requests++
	request := crm.Request{
		Actor: c.name, CorrelationID: fmt.Sprintf("%s-%d", c.name, c.requests),
		IdempotencyKey: fmt.Sprintf("%s-%s-%d", c.id, c.name, c.requests),
		Organization:   fmt.Sprintf("org-%d", number%c.cfg.Organizations),
	}
	if seen != nil {
		request.Organization = seen.Organization
	}
	request.CausationID = request.IdempotencyKey
	a, err := c.ask(ctx, func() (crm.Activity, error) { return act(ctx, request) })
	switch {
	case err == nil:
		c.succeeded(slot, a, over)
		return nil
	case seen != nil && tooLate(err):
		return c.lookAgain(ctx, slot, *seen)
	}
	return err
}

// ask sends a request, and again while its outcome is not known: the reply may
// have been lost and not the request. The idempotency key makes that safe, and
// the answer is the first one's.
func (c *client) ask(ctx context.Context, send func() (crm.Activity, error)) (crm.Activity, error) {
	began := c.clock.Mono()
	for pause := repeatPause; ; pause = min(pause+repeatPause, longestPause) {
		a, err := send()
		if err == nil || refused(err) || c.clock.Mono()-began > c.cfg.Patience {
			return a, err
		}
		c.repeated()
		if err := clock.Sleep(ctx, c.clock, pause); err != nil {
			return a, err
		}
	}
}

// lookAgain is what a client does whose picture of an activity was old.
func (c *client) lookAgain(ctx context.Context, slot int, seen crm.Activity) error {
	now, err := c.ask(ctx, func() (crm.Activity, error) { return c.service.Get(ctx, seen.Organization, seen.ID) })
	switch {
	case errors.Is(err, crm.ErrNotFound):
		c.refused(slot, seen, nil)
	case err != nil:
		return err
	case now.Status == crm.Completed || now.Status == crm.Cancelled:
		c.refused(slot, seen, nil)
	default:
		c.refused(slot, seen, &now)
	}
	return nil
}

func tooLate(err error) bool {
	return errors.Is(err, crm.ErrTransition) || errors.Is(err, crm.ErrNotFound) || errors.Is(err, crm.ErrStale)
}

// refused says whether an error is an answer; what is none may be asked again.
func refused(err error) bool {
	return tooLate(err) || errors.Is(err, crm.ErrKeyReused) || errors.As(err, new(*crm.InvalidError))
}

type operation func(context.Context, crm.Request) (crm.Activity, error)

// choose picks what to do; over is whether the activity ends with it.
func (c *client) choose(a *crm.Activity, number int) (act operation, over bool) {
	if a == nil {
		return c.create(number), false
	}
	s, id := c.service, a.ID
	person := fmt.Sprintf("u%d", c.random.IntN(9))
	plain := func(f func(context.Context, crm.Request, uuid.UUID) (crm.Activity, error)) operation {
		return func(ctx context.Context, r crm.Request) (crm.Activity, error) { return f(ctx, r, id) }
	}
	text := func(f func(context.Context, crm.Request, uuid.UUID, string) (crm.Activity, error), word string) operation {
		return func(ctx context.Context, r crm.Request) (crm.Activity, error) { return f(ctx, r, id, word) }
	}
	planned := a.Status == crm.Planned
	switch n := c.random.IntN(100); {
	case a.Owner == nil && n < 50:
		return text(s.Assign, person), false
	case a.Owner != nil && n < 20:
		return text(s.Reassign, person+"x"[:n%2]), false
	case n < 55:
		account := fmt.Sprintf("account-%d", c.random.IntN(50))
		return func(ctx context.Context, r crm.Request) (crm.Activity, error) {
			return s.Update(ctx, r, id, crm.Changes{Account: &account})
		}, false
	case n < 60:
		return text(s.AddNote, "a word between us"), false
	case planned && n < 75:
		slot := crm.Slot{ScheduledAt: calendarStart.Add(time.Duration(c.random.IntN(2000)) * 15 * time.Minute)}
		return func(ctx context.Context, r crm.Request) (crm.Activity, error) { return s.Reschedule(ctx, r, id, slot) }, false
	case planned && n < 90:
		return plain(s.Start), false
	case planned && n < 93:
		return plain(s.Delete), true
	case n < 96:
		return text(s.Complete, "done"), true
	}
	return text(s.Cancel, "no longer needed"), true
}

var calendarStart = time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)

func (c *client) create(number int) operation {
	kind := []string{"call", "meeting", "task", "email"}[c.random.IntN(4)]
	subject := fmt.Sprintf("%s number %d", kind, number)
	switch {
	case number <= c.cfg.Poison:
		subject += " " + Poison
	case number <= c.cfg.Poison+c.cfg.Flaky:
		subject += " " + Flaky
	}
	n := crm.NewActivity{Kind: kind, Subject: subject, Details: "nobody else's business", Account: fmt.Sprintf("account-%d", number%50)}
	if c.random.IntN(2) == 0 {
		owner := fmt.Sprintf("u%d", c.random.IntN(9))
		n.Owner = &owner
	}
	return func(ctx context.Context, r crm.Request) (crm.Activity, error) { return c.service.Create(ctx, r, n) }
}
