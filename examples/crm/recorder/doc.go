// Package recorder keeps a log of what handlers were given, apart from what the
// runtime writes about it, and checks one against the other: what was
// appended, what was handed to whom, in which order, and how often.
//
// A mark "begin" is committed before a handler runs and a mark "done" after it
// has succeeded: under HandleTx in the handler's transaction, so that it is there
// exactly if the handler's writes are. Marks are numbered by one sequence; a handler
// that starts after another has ended has a higher number, in whatever process.
package recorder
