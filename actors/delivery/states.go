package delivery

import (
	"fmt"
	"slices"
)

// DeliveryState is where one event stands with one consumer.
type DeliveryState string

// The states of a delivery. The view "deliveries" shows the same words, and "event_status" what
// they come to over all consumers of an event.
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
	nexts, known := deliveryTransitions[s]
	switch {
	case !known:
		return fmt.Errorf("delivery state %q is unknown", s)
	case !slices.Contains(nexts, next):
		return fmt.Errorf("a delivery cannot go from %s to %s", s, next)
	}
	return nil
}
