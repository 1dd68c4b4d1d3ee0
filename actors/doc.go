// Package actors holds the actor tree's two lower levels: one record actor per
// claimed record, and under it one consumer actor per consumer with work there.
//
// A record actor is a thin shell around the delivery machine
// (actors/delivery): it passes it messages and carries out the effects that it
// returns. Nothing blocks in a Receive: SQL goes through the store's committer
// and the supervisor's loader, handlers run on goroutines of their own.
//
// # How a delivery runs
//
// A Start effect becomes a [Ticket]. It first reserves its (record, consumer)
// in [Pairs], so that no second handler of the same pair ever runs in this
// process, then a place at the [Gate], and is then sent to the consumer actor,
// which runs the handler on a goroutine. A success goes straight back to the
// record actor. A failure goes to the consumer actor, which panics with it: so
// the record actor's HandleFailure, as the supervisor, sees every failure
// together with the child that it happened in, and [Decide] says whether that
// child is restarted or stopped, and whether the failure escalates to the root.
// Either way the machine hears of the outcome exactly once.
//
// # What survives what
//
// The [Seat] of a record actor outlives its incarnations: after a panic in the
// shell, the next incarnation finds the claim there, waits for the flush and
// the handlers of the last one, and reads the record again under the same
// claim. A seat whose actor never failed and whose record ended cleanly is
// handed the next record, together with its children; any other is dropped.
package actors
