package outbox

// OnReached has f told of each step inside a transaction.
func (o *Outbox) OnReached(f func(step string)) { o.reached = f }
