// Package outbox lets Keyline take over an outbox table that a drainer of the team's own works on, without losing an event or
// the order of a record's events, and gives it back if need be. docs/adopting.md shows the way step by step; the command line
// has it as `keyline outbox`.
//
// # The steps
//
//   - [Outbox.Probe] reads the physical table and what the settings make of its rows. It changes nothing.
//   - [Outbox.Prepare] adds a column for the record's key, a trigger that fills it, and the lock that drainers take. Old writers and
//     old drainers go on as they are. With Guard, only a drainer that holds the lock can end rows.
//   - [Outbox.Backfill] gives old rows the keys that new ones get.
//   - [Outbox.Cutover] appends what waits and lets each later insert append, in one transaction.
//   - [Outbox.Back] gives the table back to the old drainer.
//   - [Outbox.Status] says who drains.
//
// There is no state but what is on the table: its columns, its triggers, the functions beside it, and the settings, which are the
// comment of one of them. So no second truth can say otherwise, and what is committed with the table is true of the table.
//
// # Why nothing is lost, repeated or overtaken
//
// Three things are relied on.
//
// L, the drainers' lock, is an advisory lock of the table. A drainer holds it shared from before it reads rows until
// after it has ended them; the cut-over, the way back and each chunk of the backfill hold it alone. The function that takes it refuses
// where Keyline drains, where the transaction has used the table already (it may have read before the lock), and where its snapshot is older than the lock
// (any isolation but READ COMMITTED). The guard refuses, after each statement, to end a row that waits in a session that does not hold L. It looks into pg_locks
// at its own session, so it cannot be deceived by a setting.
//
// W, the table's EXCLUSIVE lock, conflicts with every insert, update and delete, and is held by the cut-over and the way back until they commit. A
// statement that waits for it reads the table's triggers after it has got its own lock: it fires those of after the commit.
//
// R, the lock on a record's row that an append takes, makes the order of the record's stream the order of commits.
//
// Let a row wait at the cut-over. W was got, so whoever inserted it has committed and nobody inserts beside. L was got, so no drainer is
// between reading and ending it, and none will be: from the commit on L is refused. The row is appended and marked done in the same transaction,
// which commits as a whole or, killed anywhere, not at all. So each row is ended by exactly one: by the old drainer before, or by the
// cut-over. Let a row be inserted later: its statement waited for W or came after it, so the trigger is there; the event is appended
// in the writer's transaction, after the row is truly in the table (after "on conflict do nothing" has had its say), and the row is done from the start.
// If the append is refused so is the insert: nothing is lost silently.
//
// Order per record: what the old drainer delivered was read before the cut-over held L, and goes before all that Keyline has. What waited is appended in the order
// (created, id). What came later is appended after the commit, since R was taken before. On the way back Keyline has to have
// delivered all while W is held: what is inserted then goes to the old drainer, and nothing of it is in Keyline's hands.
//
// Repetition: an event's idempotency key is made of table, id and created. A row that somebody makes wait again, after the way back, is found to be there at
// the next cut-over. An id that is used again (truncate … restart identity) comes with another time, and is another event; where created is
// no time, or a date, or a row is put back as it was, the insert is refused: it would be done and not delivered. While Keyline drains,
// an update can neither make a row wait again nor change what was forwarded: both would be lost, and are refused.
//
// # What it does not do
//
//   - A drainer that delivers first and takes the lock for the marking alone cannot be found out where it does these in two
//     transactions. Its mark is refused after the cut-over, but its last batch has then been delivered twice.
//   - A drainer that died between delivering and marking has its rows delivered again, as by the next drainer.
//   - Events that new code appended to a record itself, while rows of it waited, are before these.
//   - Triggers do not run where session_replication_role is replica.
//
// # Who waits for whom
//
// Writers wait for this package only behind W and the moment in which columns and triggers are added. Each try for such a lock is short (Patience.Lock), so that
// writers do not queue behind somebody's long transaction, and shorter than deadlock_timeout, so that in a deadlock with a writer it
// is never the writer who dies; an autovacuum gives way only to whoever waits longer, so where one is in the way a try is longer. A client that freezes
// is ended by the server after ten seconds.
package outbox
