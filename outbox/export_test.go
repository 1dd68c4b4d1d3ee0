package outbox

import "time"

// Believe has the server believe for so long in a client that says nothing.
func (o *Outbox) Believe(d time.Duration) { o.believed = d }

// OnReached has f told of each step inside a transaction.
func (o *Outbox) OnReached(f func(step string)) { o.reached = f }
