// Package listener wakes a worker's claim loop. It decides when the worker may
// sleep, makes sure that whoever commits work meanwhile knows that somebody
// sleeps, and tells the loop when, and how, to look again.
//
// # Why it is not just LISTEN
//
// A NOTIFY makes every committing transaction queue behind one server-wide
// lock. So appenders notify only when somebody is asleep, and a worker says
// that it wants to sleep by asking for an exclusive advisory lock, the sleep
// lock, on a session of its own:
//
//   - An appender tries the same lock, shared, until the end of its
//     transaction. If it gets it, nobody sleeps: no NOTIFY. If it does not,
//     somebody sleeps or is about to: it notifies, with the record's id.
//   - The exclusive lock is granted only after every transaction that decided
//     "nobody sleeps" has ended. After the grant the worker looks once more at
//     everything that is due. So no wake-up is lost, and the end of a long
//     transaction is itself a wake-up.
//
// One worker at a time goes through this, the one that holds the seat (a second
// lock, which appenders do not know). It answers notifications for all; the
// other idle workers wait for the seat, so that one event does not make fifty
// workers claim. While the grant is delayed by somebody's long transaction, the
// elected one looks again by itself at growing intervals: transactions that had
// decided not to notify, and end sooner than the long one, are found with a
// delay in proportion to their own length.
//
// # The claim loop's side
//
//	for {
//		select {
//		case w := <-l.Wakes():
//			// w.Unbounded: claim everything due. Else w.Records, if any, and
//			// what is due; after Dry the records alone will do, where the
//			// wake has no other cause than Notified.
//		case <-capacityFreed:
//		}
//		// Found so much that it need not be called, or cannot claim because all
//		// slots are taken:
//		l.Busy()
//		// An unbounded claim found nothing and there are free slots:
//		l.Dry(nextDue, ok)
//	}
//
// Between Busy and the next Dry the loop drives itself: it claims again as long
// as it finds something and has room. Dry may be said only after an unbounded
// claim that came back empty: a claim that starts where the last one ended can
// miss what an older transaction has committed since. A worker that is
// saturated must say Busy, or it would hold the sentinel's lock without being
// able to act on what it hears.
//
// A loop that has said Dry, is called for records by name and gets all of them,
// may say nothing and wait on: it stays asleep, and is called for the next ones.
// If the wake has another cause as well, or it gets fewer, it looks at everything.
//
// Wakes are coalesced into one slot, never dropped: whatever is in the slot
// began after, or together with, the fact that it speaks of. A wake that comes
// while the loop is busy stays there.
package listener
