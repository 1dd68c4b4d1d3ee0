// Command faults stages the faults that queues, outboxes and event stores are
// known to suffer, on a real PostgreSQL server and real worker processes, and
// checks afterwards that nothing was lost, reordered or left behind.
//
//	make faults            all scenarios
//	make faults N=20,21    these
//	make faults ARGS='-budget 90s -from 40'
//	                       from the 41st on, and none begins after 90 seconds
//
// It prints one JSON line per scenario and a sum at the end, and fails unless
// all that ran have passed. A scenario that cannot run on this machine is
// skipped with a reason, which is not a pass.
//
// Two witnesses are asked after each scenario: the database, by what `keyline
// verify` looks for, and a recorder on the handlers' side which the runtime does
// not write. docs/guarantees.md says which scenarios stand for which promise, and
// what they do not show; docs/decisions/0022-bugs-found-by-staged-faults.md what
// they have found, and by which breaks of the product some were seen red.
package main
