package store

import "sync/atomic"

// Calls counts round trips to the database by kind. Each is one transaction,
// but for loads, which are one per statement.
type Calls struct {
	Claims, Loads, Flushes, Transactions int64
}

func (c Calls) since(before Calls) Calls {
	return Calls{c.Claims - before.Claims, c.Loads - before.Loads, c.Flushes - before.Flushes, c.Transactions - before.Transactions}
}

type callCounters struct {
	claims, loads, flushes, transactions atomic.Int64
}

// Calls returns how many calls this store has made.
func (s *Store) Calls() Calls {
	return Calls{s.calls.claims.Load(), s.calls.loads.Load(), s.calls.flushes.Load(), s.calls.transactions.Load()}
}
