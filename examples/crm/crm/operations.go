package crm

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// NewActivity is what an activity is created from.
type NewActivity struct {
	Kind        string     `json:"kind"`
	Subject     string     `json:"subject"`
	Details     string     `json:"details"`
	Account     string     `json:"account"`
	Owner       *string    `json:"owner"`
	ScheduledAt *time.Time `json:"scheduled_at"`
	Minutes     int        `json:"minutes"` // 0: 30
}

const insertActivity = `
insert into crm.activities (organization, id, kind, subject, details, account, owner, scheduled_at, minutes, created_by, updated_by)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)
returning ` + columns

// Create makes an activity.
func (s *Service) Create(ctx context.Context, r Request, n NewActivity) (Activity, error) {
	if n.Minutes == 0 {
		n.Minutes = 30
	}
	if err := first(r.check(), n.check()); err != nil {
		return Activity{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Activity{}, err
	}
	return s.carryOut(ctx, change{Request: r, op: OpCreate, id: id, input: n, apply: func(ctx context.Context, tx pgx.Tx) (Activity, error) {
		rows, err := tx.Query(ctx, insertActivity, r.Organization, id, n.Kind, n.Subject, n.Details, n.Account, n.Owner, n.ScheduledAt, n.Minutes, r.Actor)
		if err != nil {
			return Activity{}, err
		}
		return pgx.CollectExactlyOneRow(rows, scanActivity)
	}})
}

// Changes are new values for some of an activity's fields; nil leaves a field
// as it is.
type Changes struct {
	Subject *string `json:"subject"`
	Details *string `json:"details"`
	Account *string `json:"account"`
}

// Update changes what an activity is about, while it is not over.
func (s *Service) Update(ctx context.Context, r Request, id uuid.UUID, c Changes) (Activity, error) {
	if err := first(r.check(), c.check()); err != nil {
		return Activity{}, err
	}
	return s.carryOut(ctx, update(r, OpUpdate, id, c,
		`subject = coalesce($6, subject), details = coalesce($7, details), account = coalesce($8, account)`, "true",
		c.Subject, c.Details, c.Account))
}

// Assign gives an activity that has no owner its first one.
func (s *Service) Assign(ctx context.Context, r Request, id uuid.UUID, owner string) (Activity, error) {
	if err := first(r.check(), checkOwner(&owner)); err != nil {
		return Activity{}, err
	}
	return s.carryOut(ctx, update(r, OpAssign, id, owner, `previous_owner = owner, owner = $6`, `owner is null`, owner))
}

// Reassign gives an activity to another owner.
func (s *Service) Reassign(ctx context.Context, r Request, id uuid.UUID, owner string) (Activity, error) {
	if err := first(r.check(), checkOwner(&owner)); err != nil {
		return Activity{}, err
	}
	return s.carryOut(ctx, update(r, OpReassign, id, owner, `previous_owner = owner, owner = $6`, `owner <> $6`, owner))
}

// Start begins a planned activity.
func (s *Service) Start(ctx context.Context, r Request, id uuid.UUID) (Activity, error) {
	if err := r.check(); err != nil {
		return Activity{}, err
	}
	return s.carryOut(ctx, update(r, OpStart, id, nil, `status = 'in_progress'`, "true"))
}

// Slot is a time for an activity.
type Slot struct {
	ScheduledAt time.Time `json:"scheduled_at"`
	Minutes     int       `json:"minutes"` // 0: as it is
}

// Reschedule gives a planned activity another time, or its first one.
func (s *Service) Reschedule(ctx context.Context, r Request, id uuid.UUID, slot Slot) (Activity, error) {
	if err := first(r.check(), slot.check()); err != nil {
		return Activity{}, err
	}
	return s.carryOut(ctx, update(r, OpReschedule, id, slot,
		`previous_scheduled_at = scheduled_at, scheduled_at = $6::timestamptz, minutes = coalesce(nullif($7::integer, 0), minutes)`,
		`(scheduled_at, minutes) is distinct from ($6::timestamptz, coalesce(nullif($7::integer, 0), minutes))`, slot.ScheduledAt, slot.Minutes))
}

// Complete ends an activity with an outcome.
func (s *Service) Complete(ctx context.Context, r Request, id uuid.UUID, outcome string) (Activity, error) {
	if err := first(r.check(), checkText("outcome", outcome, 1, maxOutcome)); err != nil {
		return Activity{}, err
	}
	return s.carryOut(ctx, update(r, OpComplete, id, outcome, `status = 'completed', outcome = $6`, "true", outcome))
}

// Cancel ends an activity that does not take place; reason may be empty.
func (s *Service) Cancel(ctx context.Context, r Request, id uuid.UUID, reason string) (Activity, error) {
	if err := first(r.check(), checkText("reason", reason, 0, maxOutcome)); err != nil {
		return Activity{}, err
	}
	return s.carryOut(ctx, update(r, OpCancel, id, reason, `status = 'cancelled', outcome = $6`, "true", reason))
}

// Delete removes an activity that has not taken place. Its events and its audit
// log stay. The answer is the activity as it was last.
func (s *Service) Delete(ctx context.Context, r Request, id uuid.UUID) (Activity, error) {
	if err := r.check(); err != nil {
		return Activity{}, err
	}
	c := change{Request: r, op: OpDelete, id: id}
	c.apply = func(ctx context.Context, tx pgx.Tx) (Activity, error) {
		// The update makes the last version, which the event tells of; then it goes.
		a, err := c.write(ctx, tx, updateActivity(`owner = owner`, "true"))
		if err != nil {
			return Activity{}, err
		}
		_, err = tx.Exec(ctx, `delete from crm.activities where organization = $1 and id = $2`, r.Organization, id)
		return a, err
	}
	return s.carryOut(ctx, c)
}

const insertNote = `
insert into crm.internal_notes (organization, activity_id, version, body, author, at) values ($1, $2, $3, $4, $5, $6)`

// AddNote keeps a note that is not for the customer's eyes. Its event is
// internal-only, and says no more than that there is a note.
func (s *Service) AddNote(ctx context.Context, r Request, id uuid.UUID, body string) (Activity, error) {
	if err := first(r.check(), checkText("body", body, 1, maxDetails)); err != nil {
		return Activity{}, err
	}
	c := change{Request: r, op: OpNote, id: id, input: body}
	c.apply = func(ctx context.Context, tx pgx.Tx) (Activity, error) {
		a, err := c.write(ctx, tx, updateActivity(`owner = owner`, "true"))
		if err != nil {
			return Activity{}, err
		}
		_, err = tx.Exec(ctx, insertNote, r.Organization, id, a.Version, body, r.Actor, a.UpdatedAt)
		return a, err
	}
	c.payload = func(a Activity) any {
		return Note{Organization: a.Organization, ActivityID: a.ID, Version: a.Version, Author: a.UpdatedBy}
	}
	return s.carryOut(ctx, c)
}
