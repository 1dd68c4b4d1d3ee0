package keyline

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Claim takes the publisher's event types for in-process publishing in this
// database: from its commit on, append refuses them with CodeInProcessType
// (SQLSTATE KL007). Repeating it changes nothing. ErrConflict: one of the types
// is registered for append (Client.RegisterEventTypes).
func (p *InProcess) Claim(ctx context.Context, db Beginner) error {
	const op = "claim event types"
	if db == nil {
		return noDatabase(op)
	}
	return withOp(op, translate(op, changeRegistry(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		// The lock orders this beside a registration of event types.
		if _, err := tx.Exec(ctx, p.sql.LockMeta); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, p.sql.RegisteredTypes, p.types)
		if err != nil {
			return err
		}
		registered, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		if len(registered) > 0 {
			return conflict(CodeInProcessType, "Type", "%s is registered for append", registered[0])
		}
		_, err = tx.Exec(ctx, p.sql.ClaimInProcess, p.types)
		return err
	})))
}

// Release gives the publisher's event types back to append, when its consumers
// have moved to a worker; from its commit on this publisher is refused them
// where it is given the database.
func (p *InProcess) Release(ctx context.Context, db Beginner) error {
	const op = "release event types"
	if db == nil {
		return noDatabase(op)
	}
	return withOp(op, translate(op, changeRegistry(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, p.sql.ReleaseInProcess, p.types)
		return err
	})))
}

// checkClaimed refuses types that are not claimed where there is a database
// through which somebody else may append them.
func (p *InProcess) checkClaimed(ctx context.Context, db PGX, batch []prepared) error {
	if db == nil {
		return nil
	}
	var types []string
	for _, e := range batch {
		if !slices.Contains(types, e.eventType) {
			types = append(types, e.eventType)
		}
	}
	claimed := false
	err := pgxQuery(db)(ctx, p.sql.ClaimedInProcess, []any{types}, func(scan func(...any) error) error { return scan(&claimed) })
	if err == nil && !claimed {
		err = invalid(CodeInProcessType, "Type", "is not claimed for in-process publishing in this database; see InProcess.Claim")
	}
	return err
}
