package keylinetype

// Attributes of spans beside OpenTelemetry's messaging conventions, by their
// names. docs/tracing.md says which span has which. None holds anything of a payload.
const (
	// AttrRecordKey and AttrTenant name the record. The messaging destination is the
	// record's type and never its key, which would be a new time series per record.
	AttrRecordKey = "keyline.record.key"
	AttrTenant    = "keyline.tenant"
	// AttrEventSeq, AttrEventType and AttrEventVersion are the event's; its id is messaging.message.id.
	AttrEventSeq     = "keyline.event.seq"
	AttrEventType    = "keyline.event.type"
	AttrEventVersion = "keyline.event.version"
	// AttrDuplicate says of an append that its idempotency key had been used: nothing was written.
	AttrDuplicate = "keyline.append.duplicate"
	// AttrAttempt counts a delivery's runs, from 1.
	AttrAttempt = "keyline.delivery.attempt"
	// AttrMode is why it is delivered: a Mode.
	AttrMode = "keyline.delivery.mode"
	// AttrRedelivered says that an earlier run may have done something.
	AttrRedelivered = "keyline.delivery.redelivered"
	// AttrOutcome is what came of a run: completed, retry, permanent, snoozed,
	// skipped, panic, cancelled or fenced.
	AttrOutcome = "keyline.delivery.outcome"
)
