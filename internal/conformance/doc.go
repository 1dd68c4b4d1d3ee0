// Package conformance says what a store of Keyline must do, as tests that any
// implementation of internal/core's interfaces can be put through: the Postgres
// store (package store) and its in-memory twin (internal/sim) both pass them. A
// twin that differs would make the random schedules that run on it worthless.
//
//   - Run is a table of named cases, each a promise of the contract.
//   - Compare drives two installations through the same random operations and
//     compares every answer and all rows after each.
//   - Twin is the in-memory twin as an Installation; the Postgres one is in
//     store's tests, since it reads and writes tables that only the store knows.
package conformance
