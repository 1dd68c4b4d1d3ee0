// Package keylinetest helps test programs that use Keyline, on a real
// PostgreSQL and without waiting: a database for each test, and a worker that runs
// until there is nothing left to do.
//
//	func TestMain(m *testing.M) { os.Exit(keylinetest.Main(m)) } // optional: one server for all packages
//
//	func TestATimelineIsKept(t *testing.T) {
//		db := keylinetest.New(t)
//		worker := db.Worker(timeline())
//		event := db.Append(keyline.NewEvent{Key: keyline.Key{Record: "activity:42"}, Type: "activity.completed"})
//		worker.Run()                                    // delivers, retries included, and returns
//		worker.AssertDelivered("timeline", event...)
//	}
//
// The server is the one that DATABASE_URL names, with a role that may create databases; without
// it one is started from the machine's PostgreSQL binaries (KEYLINE_PG_BIN, PATH, where packages put them), on a Unix
// socket, and ends with the tests.
//
// # Time
//
// When a retry is due is decided by the database's clock, so there is no fake
// clock that could move it. A Worker shortens the pauses of its consumers' retry
// policies to nothing instead, and keeps the number of runs: four runs take no time. What a handler asks for
// itself (keyline.Snooze, keyline.RetryAfter) is kept, and Run does not wait for it beyond Options.Within.
package keylinetest
