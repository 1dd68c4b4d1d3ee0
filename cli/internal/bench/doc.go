// Package bench is `keyline bench`: how much of what Postgres can do the
// runtime delivers.
//
// drain fills records with events and lets them be delivered, in turn by the
// bare loop (the same embedded SQL and group commit, without actors and
// handlers) and by a real worker, whose handlers do nothing but check what they
// are given. Each turn starts on a copy of the same database. Figures of one
// machine are to be read as ratios.
package bench
