// Package sim runs the delivery core against an in-memory twin of the store:
// random schedules of appends, claims, handlers, flushes, crashes, registry
// changes and operators' commands drive real record machines, and a checker
// that keeps books of its own compares what handlers saw and what the twin
// holds with what Keyline promises.
//
// Everything is single-threaded and in virtual time, so a seed is a schedule.
// `make sim` runs many of them (package simulate).
//
//   - Twin is the store: each method is one transaction, with the rules of the
//     SQL functions.
//   - Run drives workers and machines on a Twin; Config says which faults and
//     features a run has.
//   - Draw and Seeded draw what a run is about; Faults are the kinds that are counted.
//   - Shrink makes a failing schedule shorter.
//   - the checker is the promises, each a method named after it.
package sim
