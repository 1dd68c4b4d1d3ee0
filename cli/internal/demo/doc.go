// Package demo is the show of `keyline demo`: a cluster of worker processes, the
// reference application's traffic, a worker killed while it holds records, a
// failure that passes and an event that never succeeds; then a verdict, out of
// what the database says and of what the handlers have recorded on their own.
package demo
