// Package delivery is the pure core of a record's processing: what to run next,
// what to write, when to settle or hand back. It does no I/O, starts nothing and
// reads no clock: live actors, the property tests and the simulator run this
// same code.
//
// A Machine is the state of one claimed record. Its shell (the record actor)
// passes it messages and carries out the effects that it returns, in order.
package delivery
