package sim

import "github.com/keylinehq/keyline/internal/core"

// Command gives an operator's command to a record, and returns its id; 0 where it would wait
// for an appender.
func (t *Twin) Command(c core.Command) int64 {
	r := t.record(c.Record)
	if r.open != nil || r.head == 0 {
		return 0
	}
	c.ID = int64(len(t.commands) + 1)
	t.commands = append(t.commands, &CommandRow{Command: c})
	t.makeDue(r)
	return c.ID
}
