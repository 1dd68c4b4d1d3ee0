// Package keyline is an event-sourced actor runtime on Postgres.
//
// An application appends events to a record's stream inside its own database
// transaction. A cluster of workers then delivers every event to every
// interested consumer, strictly in order per record, at least once (exactly once
// for effects kept in the same database), each consumer at its own checkpoint
// and with its own backoff. Postgres is the only shared brain: workers hold no
// state that a crash can lose, and more of them are started to scale out.
//
// # Appending
//
// A [Client] appends in whatever transaction the caller has, so that the fact
// and its consequences in the application's own tables commit or vanish together:
//
//	tx, err := pool.Begin(ctx)
//	…
//	_, err = tx.Exec(ctx, `update activities set done = true where id = 42`)
//	_, err = client.Append(ctx, tx, keyline.NewEvent{
//		Key:     keyline.Key{Tenant: "acme", Record: "activity:42"},
//		Type:    "activity.completed",
//		Payload: Completed{By: "u1"},
//	})
//	…
//	err = tx.Commit(ctx)
//
// [Client.AppendSQL] does the same for database/sql with any driver, and every
// other language calls the SQL function keyline.append (docs/sql.md). The client
// calls it too, after it has checked what it can without spoiling the
// transaction: payloads against the schemas of their types, among others.
//
// # Consuming
//
// A [Consumer] is a named handler with its policies. Its handler gets each
// event of the types that it names, one at a time per record and in order, and
// says by its error what is to become of the delivery: nil completes it,
// [Permanent], [RetryAfter], [Snooze] and [Skip] say more, and everything else
// is tried again by the retry policy.
//
// A [Worker] runs consumers, in a process of its own or inside another program:
// [Worker.Run] until its context ends, [Worker.Drain] until nothing is due. Workers
// on one database are a cluster, which grows by starting more of them. The schema has to be
// there first: `keyline migrate up` makes it.
//
// # Operating and testing
//
// [NewOperator] makes an [Operator], by which the command line and the admin API
// (package api) see and act. Package keylinetest gives a test a database of
// its own and a worker that returns when nothing is left to do; [InProcess] is a
// [Publisher] that needs neither.
//
// # Guarantees
//
// Within a record each consumer sees events in the order of their seq, which is
// the order in which the appending transactions committed. Every event is
// delivered at least once: a handler must bear a repetition, for which each
// delivery carries a stable [Delivery.IdempotencyKey], and [Delivery.DeterministicID]
// for rows. Consumer.HandleTx commits the handler's writes together with its
// checkpoint, and so happens once. docs/guarantees.md names the test for each
// promise, and docs/architecture.md says how they are kept.
package keyline
