package actors

import (
	"context"

	"github.com/asynkron/protoactor-go/actor"
)

// The messages between the two levels are the ticket itself under other names:
// nothing is allocated for them.
type (
	run        Ticket // to the consumer actor: run it
	raised     Ticket // to the consumer actor: it failed; panic with it
	ended      Ticket // to the record actor
	notStarted Ticket // to the record actor
)

// consumerActor owns the handler's goroutine of one consumer on one record.
type consumerActor struct {
	cancel context.CancelFunc
	ctx    context.Context
	parent context.Context // what ctx derives from
}

// consumerProps are shared by all consumer actors: what they need comes with
// the ticket. Neither its messages nor its failures keep whoever sends them: a
// run goes to a goroutine of its own, a failure to the record actor's mailbox.
func consumerProps() *actor.Props {
	return InlineProps(func() actor.Actor { return &consumerActor{} })
}

func (c *consumerActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *run:
		t := (*Ticket)(m)
		t.seat.env.Crew.run(c.incarnation(t), t)
	case *raised:
		// Not an accident: the failure becomes the actor's own, for its
		// supervisor to decide about.
		panic(m)
	case *actor.Stopping, *actor.Restarting:
		if c.cancel != nil {
			c.cancel()
		}
	}
}

// incarnation is the context of this incarnation of the actor, a child of the
// record actor's. It is made with the first run, when the parent's is known,
// and cancelled in Stopping and Restarting.
func (c *consumerActor) incarnation(t *Ticket) context.Context {
	if c.ctx == nil || c.parent != t.ctx {
		if c.cancel != nil {
			c.cancel()
		}
		c.parent = t.ctx
		c.ctx, c.cancel = context.WithCancel(t.ctx)
	}
	return c.ctx
}
