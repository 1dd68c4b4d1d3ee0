// Package supervisor runs a worker: it is the root of the actor tree and what
// the tree needs around it.
//
//   - The claim loop takes records with work, as many as there is room for, and
//     says to the [Wakes] when it may sleep (pace.go).
//   - The loader reads claimed records, and events and registries for resident
//     ones, many per round trip, and hands each record to a seat (loader.go).
//   - The gate admits handlers: limits, a fair queue, circuit breakers
//     (gate.go, breaker.go).
//   - The lease loop keeps this worker believed alive and fences it when it can
//     no longer be; the observer finds others that are not (leases.go).
//   - The news loop tells resident records what happened to them meanwhile.
//   - The orphan sweep hands back claims that nothing here holds.
//   - Stop drains: intake first, then handlers, the leave last (stop.go).
//
// Decisions (pace, breaker, leases, suspects) are plain types without I/O that
// are told the time; the loops around them are thin. Each loop that fails is
// retried alone, with backoff, and shows in [Supervisor.Health].
//
// # The supervision tree
//
// The root actor spawns one record actor per seat; a record actor spawns one
// consumer actor per consumer with work. actors/strategies.go says what a
// failure leads to at each level.
package supervisor
