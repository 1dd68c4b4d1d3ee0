// Package webhook makes consumers that hand each event to an HTTP endpoint: as
// a CloudEvent (1.0, structured or binary), signed as Standard Webhooks are.
//
// Order per record is the runtime's: the next event of a record is sent when the
// one in front of it was taken, or given up.
package webhook
