// Package testdb gives every test a database of its own on a real PostgreSQL
// server, in a few tens of milliseconds.
//
//	func TestMain(m *testing.M) { os.Exit(testdb.Main(m)) }
//
//	func TestSomething(t *testing.T) {
//		t.Parallel()
//		db := testdb.New(t)
//		rows, err := db.Pool().Query(t.Context(), …)
//
// # One server per run
//
// All packages of one `go test` run share one server. Go starts a process per
// package, so the first one that needs a database starts a keeper (its own
// binary again, which Main turns into one), the keeper runs the server
// (internal/pgdev), and the others find it through a directory named after the
// process id of `go test`. When `go test` ends, however it ends, the keeper
// stops the server and removes its files; so it does after a minute without a
// test process, for binaries that were started by hand.
//
// The alternative, a server per package, costs each of them a second and the
// migrations again, and two sets of buffers at any time on a machine with two
// cores. Only a package without Main has one: its process cannot be turned into
// a keeper.
//
// Where DATABASE_URL is set, its server is used instead, with a role that may
// create databases. The templates stay there for the next run; the names of all
// databases made here begin with keyline_template_ or keyline_test_.
//
// # One template per schema
//
// Migrating takes longer than cloning, so the migrations run once, into a
// template database named after a hash of all their files and the schema's
// name; an advisory lock makes processes wait for the first one. New clones it
// and drops the clone when the test ends.
//
// What belongs to the server and not to a database is shared between tests that
// run at the same time: roles, settings, the right to restart it. Tests that
// crash or reconfigure a server start their own with internal/pgdev.
package testdb
