package outbox

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Status is how an outbox stands.
type Status struct {
	Table string `json:"table"`
	State State  `json:"state"`
	// Settings are those that it was prepared with; nil: it is not.
	Settings *Settings `json:"settings"`
	// Pending is what waits for the old drainer; nothing, while Keyline drains.
	Pending Backlog `json:"pending"`
	// Undelivered is how many records have events of the outbox that Keyline has not delivered yet.
	Undelivered Undelivered `json:"undelivered"`
	// Drainers is how many sessions hold the drainers' lock.
	Drainers int64 `json:"drainers"`
	// DisabledTriggers are triggers of Keyline's on the table that somebody has switched off.
	DisabledTriggers []string `json:"disabled_triggers"`
}

// Sound reports whether nothing is as it must not be: no trigger is switched off, and no row waits for a drainer that may not come.
func (s Status) Sound() bool {
	return len(s.DisabledTriggers) == 0 && (s.State != StateForwarding || s.Pending.Rows == 0)
}

// Status reads how the outbox stands. It changes nothing and locks nothing.
func (o *Outbox) Status(ctx context.Context) (Status, error) {
	var s Status
	err := o.look(ctx, func(tx pgx.Tx, t *table) error {
		s = Status{Table: t.name(), State: t.state(), Settings: t.settings, DisabledTriggers: t.disabled()}
		if t.settings == nil {
			return nil
		}
		st := o.statement(t, *t.settings)
		if _, err := tx.Exec(ctx, `set local search_path = `+st.Path); err != nil {
			return failed("look", err)
		}
		var err error
		if s.Pending, err = o.backlog(ctx, tx, st, countLimit); err != nil {
			return err
		}
		if s.Undelivered, err = o.undelivered(ctx, tx, t, st); err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `select count(distinct l.pid) from pg_locks l
			where l.locktype = 'advisory' and l.granted and l.objsubid = 1
			and l.database = (select d.oid from pg_database d where d.datname = current_database())
			and (l.classid::bigint << 32) | l.objid::bigint = `+st.Fn("lock_key")+`()`).Scan(&s.Drainers)
		return failed("count the drainers", err)
	})
	return s, err
}
