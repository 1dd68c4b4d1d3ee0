// Package store holds all of the runtime's SQL: claiming, loading, flushing,
// leases, the registry, arming. The statements lie in sql/, one per file, named after
// what they do; the functions that they call lie in migrations/.
//
// A Store has connections of its own, so that a busy application pool cannot
// starve a worker's heartbeat: one pool for deliveries, one for HandleTx
// transactions, one for leases and what else is rare (registry changes, metrics),
// and the arming session. Every session carries the process's instance id in
// application_name, by which recovery finds the sessions of a lost worker.
package store
