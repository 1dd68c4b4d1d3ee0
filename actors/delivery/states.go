package delivery

import "fmt"

// DeliveryState is where one event stands with one consumer.
type DeliveryState string

// The states of a delivery. The view "deliveries" shows the same words.
const (
	DeliveryPending     DeliveryState = "pending"
	DeliveryProcessing  DeliveryState = "processing"
	DeliveryRetry       DeliveryState = "retry_scheduled"
	DeliveryCompleted   DeliveryState = "completed"
	DeliveryIgnored     DeliveryState = "ignored"
	DeliveryUnsupported DeliveryState = "skipped_unsupported_version"
	DeliveryDead        DeliveryState = "dead_letter"
	DeliveryParked      DeliveryState = "parked"
)

// deliveryTransitions is the whole table; what is not in it is an error.
var deliveryTransitions = map[DeliveryState][]DeliveryState{
	// Without running: what does not concern the consumer, versions that it does not support.
	DeliveryPending: {DeliveryProcessing, DeliveryIgnored, DeliveryUnsupported, DeliveryDead, DeliveryParked},
	// Back to pending: the lease was lost, or the record was handed back.
	DeliveryProcessing: {DeliveryCompleted, DeliveryRetry, DeliveryUnsupported, DeliveryIgnored, DeliveryDead, DeliveryParked, DeliveryPending},
	DeliveryRetry:      {DeliveryProcessing},
	// By an operator's command, or, parked for its version, once that is supported.
	DeliveryDead:   {DeliveryPending},
	DeliveryParked: {DeliveryPending},
	// Completed, ignored and skipped are final: nothing is reopened without an explicit rebuild.
	DeliveryCompleted: {}, DeliveryIgnored: {}, DeliveryUnsupported: {},
}

// To returns an error unless a delivery may go from s to next.
func (s DeliveryState) To(next DeliveryState) error {
	return transition(deliveryTransitions, "delivery", s, next)
}

// Terminal reports whether nothing more happens to the delivery by itself.
func (s DeliveryState) Terminal() bool {
	switch s {
	case DeliveryCompleted, DeliveryIgnored, DeliveryUnsupported, DeliveryDead:
		return true
	}
	return false
}

// EventState is where an event stands over all its consumers.
type EventState string

// The states of an event. The view "event_status" shows the same words.
const (
	EventPending    EventState = "pending"
	EventClaimed    EventState = "claimed"
	EventProcessing EventState = "processing"
	EventRetry      EventState = "retry_scheduled"
	EventCompleted  EventState = "completed"
	EventDead       EventState = "dead_letter"
)

var eventTransitions = map[EventState][]EventState{
	EventPending:    {EventClaimed},
	EventClaimed:    {EventProcessing, EventPending},
	EventProcessing: {EventCompleted, EventRetry, EventDead, EventPending, EventClaimed},
	EventRetry:      {EventProcessing, EventPending, EventClaimed},
	EventDead:       {EventPending, EventCompleted},
	EventCompleted:  {},
}

// To returns an error unless an event may go from s to next.
func (s EventState) To(next EventState) error {
	return transition(eventTransitions, "event", s, next)
}

func transition[S ~string](table map[S][]S, what string, from, to S) error {
	nexts, known := table[from]
	if !known {
		return fmt.Errorf("%s state %q is unknown", what, from)
	}
	for _, n := range nexts {
		if n == to {
			return nil
		}
	}
	return fmt.Errorf("a %s cannot go from %s to %s", what, from, to)
}

// EventOf sums up an event's deliveries: processing comes before
// retry_scheduled, that before claimed, that before pending; a parked delivery keeps its event
// unfinished; with all terminal, an unresolved dead letter shows.
func EventOf(deliveries []DeliveryState, claimed bool) EventState {
	has := map[DeliveryState]bool{}
	for _, d := range deliveries {
		has[d] = true
	}
	switch {
	case has[DeliveryProcessing]:
		return EventProcessing
	case has[DeliveryRetry]:
		return EventRetry
	case has[DeliveryPending] && claimed:
		return EventClaimed
	case has[DeliveryPending], has[DeliveryParked]:
		return EventPending
	case has[DeliveryDead]:
		return EventDead
	}
	return EventCompleted
}
