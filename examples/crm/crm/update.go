package crm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// updateActivity is the statement of an operation that changes an existing
// activity: set and condition are the operation's own, with arguments from $6 on. The statement
// decides and changes in one: it finds no row where the activity is in another
// state or has another version than it should.
func updateActivity(set, condition string) string {
	return `
update crm.activities
set version = version + 1, updated_at = greatest(now(), updated_at), updated_by = $3, ` + set + `
where organization = $1 and id = $2 and status = any ($4) and ($5 = 0 or version = $5) and (` + condition + `)
returning ` + columns
}

// update is an operation that is one such statement.
func update(r Request, op Operation, id uuid.UUID, input any, set, condition string, args ...any) change {
	c := change{Request: r, op: op, id: id, input: input}
	c.apply = func(ctx context.Context, tx pgx.Tx) (Activity, error) {
		return c.write(ctx, tx, updateActivity(set, condition), args...)
	}
	return c
}

// write runs the statement and says why where it finds no row.
func (c change) write(ctx context.Context, tx pgx.Tx, text string, args ...any) (Activity, error) {
	statuses := make([]string, len(allowed[c.op]))
	for i, s := range allowed[c.op] {
		statuses[i] = string(s)
	}
	rows, err := tx.Query(ctx, text, append([]any{c.Organization, c.id, c.Actor, statuses, c.IfVersion}, args...)...)
	if err != nil {
		return Activity{}, err
	}
	a, err := pgx.CollectExactlyOneRow(rows, scanActivity)
	if errors.Is(err, pgx.ErrNoRows) {
		return Activity{}, c.refusal(ctx, tx)
	}
	return a, err
}

func (c change) refusal(ctx context.Context, tx pgx.Tx) error {
	now, err := get(ctx, tx, c.Organization, c.id)
	switch {
	case err != nil:
		return err
	case c.IfVersion != 0 && now.Version != c.IfVersion:
		return fmt.Errorf("%w: it is at version %d", ErrStale, now.Version)
	}
	if slices.Contains(allowed[c.op], now.Status) {
		return fmt.Errorf("%w: %s", ErrTransition, already[c.op])
	}
	return fmt.Errorf("%w: it is %s", ErrTransition, now.Status)
}

// already is why an operation is refused in a status that allows it.
var already = map[Operation]string{
	OpAssign:     "it has an owner, reassign it",
	OpReassign:   "it has no owner yet, or this one",
	OpReschedule: "that is its time",
}
