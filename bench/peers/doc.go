// Peers runs the same work on Keyline and on what one would otherwise pick,
// against the same Postgres in the same run, taking turns, and prints JSON and
// a table with ratios.
//
//	go run ./peers --out f.json [--scenarios 'drain-*,latency-500'] [--peers river,gue] [--records 200000] [--runs 3]
//
// The scenarios:
//
//   - drain-1, drain-4: records with one event each, for one and four consumers.
//   - drain-tx: drain-1 with a handler that writes a row in the transaction that
//     also makes its delivery done.
//   - append, append-busy: clients that append, each in its own transaction,
//     without and with a worker at the same time.
//   - drain-pinned: drain-1 while a transaction that began before it stays open,
//     so that no dead row version can be removed.
//   - latency-50, latency-500, latency-2000: from commit to handler start, at so
//     many events per second.
//   - hot-many, hot-one: 200 records with 1,000 events each, and one with
//     10,000, in order.
//   - alone-*: what "keyline bench" measures against goals of its own, such as
//     10,000,000 events or 8 worker processes. --keyline names the program,
//     --plots the folder that it draws courses into.
//   - costs-1, costs-4: what one delivery of a drain costs those who were tuned:
//     statements, commits, WAL, dead row versions, and the CPU of the server and
//     of the process with the handlers. One run each. The server then counts
//     statements, which slows every side a little, so these speeds are not to be
//     quoted. It needs Linux.
//
// The peers are River, gue, watermill-sql, DBOS with a partition for each
// record, and, on Node, graphile-worker and pg-boss: each as it comes and tuned
// by its own documentation and by trying. A job queue gets one job per consumer
// and event, watermill-sql a consumer group per consumer. Each result has the
// settings that its side ran with. A side that would take minutes for all of
// the work gets less of it, and its settings say how much. A peer that has no
// part in a scenario, or cannot run on this machine, is a result with the
// reason in "skipped".
//
// Every handler keeps its own books: a run that lost, repeated or reordered
// anything says so, whatever its speed, and where it is Keyline's the command
// fails. Loss is counted where work is drained, and in the database where it is
// appended. Order is counted in the hot scenarios. A latency run does not
// measure its first second, and waits 20 seconds for what is not begun; what is
// not begun by then is "late".
//
// All sides have the same server, the same number of connections and no
// tracing. The handlers do nothing but count.
//
// The peers on Node are in node, with a lock file. They are installed by npm
// into a folder of the user's cache, once.
package main
