package sim

// Fault is a kind of thing that goes wrong, or comes between.
type Fault int

// The kinds. Each is counted where it has its effect, not where it is drawn.
const (
	// Crash: a process ends, and its transactions are rolled back.
	Crash Fault = iota
	// Zombie: a process that was silent for longer than its lease goes on, with handlers and claims of its own.
	Zombie
	// KilledByEvent: a handler ends its process, and will again.
	KilledByEvent
	// Fenced: a worker finds itself lost or cut off, gives up what it holds and joins anew.
	Fenced
	// Drained: a worker ends what runs, hands back the rest and starts again.
	Drained
	// FlushAnswerLost: a flush was executed, its answer never came; it is sent again.
	FlushAnswerLost
	// FlushInLimbo: the server executes a flush whose sender is gone.
	FlushInLimbo
	// ClaimAnswerLost: records are claimed for a worker that does not know it.
	ClaimAnswerLost
	// CommitReplyLost: a HandleTx has committed, and its worker must find out.
	CommitReplyLost
	// ConnectionLost: the connection breaks before a HandleTx commits.
	ConnectionLost
	// TransientError: a deadlock or serialization failure rolls a claim, a flush or a HandleTx back.
	TransientError
	// AppenderInFlight: a record cannot settle because an append to it has not ended.
	AppenderInFlight
	// StartRefused: an open breaker holds a delivery.
	StartRefused
	// RegistryChange: a consumer is registered, revised, or changes its status.
	RegistryChange
	// Command: an operator acts on a record.
	Command
	// WakeLost: a notification never came; the poll found what it told of.
	WakeLost
	// ClockStep: the database's clock is set, forward or back.
	ClockStep
	// ClockSkew: a machine is told a time other than the database's.
	ClockSkew

	faults
)

// Faults are all kinds.
func Faults() []Fault {
	list := make([]Fault, faults)
	for i := range list {
		list[i] = Fault(i)
	}
	return list
}

// String is the kind's name in reports.
func (f Fault) String() string {
	return [...]string{"crash", "zombie", "killed_by_event", "worker_fenced", "worker_drained", "flush_answer_lost", "flush_in_limbo",
		"claim_answer_lost", "commit_reply_lost", "connection_lost", "transient_error", "appender_in_flight", "start_refused",
		"registry_change", "command", "wake_lost", "clock_step", "clock_skew"}[f]
}

// met counts a fault.
func (r *run) met(f Fault) { r.stats.Faults[f]++ }
