package sim

import "github.com/keylinehq/keyline/internal/core"

// Command gives an operator's command to a record; false where it would wait
// for an appender.
func (t *Twin) Command(c core.Command) bool {
	r := t.record(c.Record)
	if r.open != nil || r.head == 0 {
		return false
	}
	c.ID = int64(len(t.commands) + 1)
	t.commands = append(t.commands, &CommandRow{Command: c})
	t.makeDue(r)
	return true
}
