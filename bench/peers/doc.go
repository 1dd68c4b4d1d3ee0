// Peers runs the same work on Keyline and on what one would otherwise pick,
// against the same Postgres in the same run, taking turns, and prints JSON and
// a table with ratios.
//
//	go run ./peers --out f.json [--scenarios drain,append,latency] [--records 200000] [--runs 3]
//
// Every handler keeps its own books: a run that lost, repeated or reordered
// anything says so, whatever its speed. A job queue gets one job per consumer
// and event. All sides have the same server, the same number of connections and no
// tracing.
package main
