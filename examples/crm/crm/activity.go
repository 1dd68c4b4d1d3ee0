package crm

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Status is where an activity stands.
type Status string

// The statuses.
const (
	Planned    Status = "planned"
	InProgress Status = "in_progress"
	Completed  Status = "completed"
	Cancelled  Status = "cancelled"
)

// Operation is something that can be done to an activity.
type Operation string

// The operations. The first nine make an event of their own type each, which
// is "activity." and the past participle; a note makes an internal-only one.
const (
	OpCreate     Operation = "create"
	OpUpdate     Operation = "update"
	OpAssign     Operation = "assign"
	OpReassign   Operation = "reassign"
	OpStart      Operation = "start"
	OpReschedule Operation = "reschedule"
	OpComplete   Operation = "complete"
	OpCancel     Operation = "cancel"
	OpDelete     Operation = "delete"
	OpNote       Operation = "note"
)

// allowed are the statuses in which an operation makes sense; OpCreate has none.
// Every change names them in its where clause, so that a decision made on a
// status that has passed changes nothing: nobody reads, thinks and then writes.
var allowed = map[Operation][]Status{
	OpUpdate:     {Planned, InProgress},
	OpAssign:     {Planned, InProgress},
	OpReassign:   {Planned, InProgress},
	OpStart:      {Planned},
	OpReschedule: {Planned},
	OpComplete:   {Planned, InProgress},
	OpCancel:     {Planned, InProgress},
	OpDelete:     {Planned, Cancelled},
	OpNote:       {Planned, InProgress, Completed, Cancelled},
}

// Snapshot is an activity as a change has left it: the row that the change
// returned. It is the payload of the change's event. What must not leave the
// activity's own table is not in it.
type Snapshot struct {
	Organization        string     `json:"organization"`
	ID                  uuid.UUID  `json:"id"`
	Kind                string     `json:"kind"`
	Subject             string     `json:"subject"`
	Account             string     `json:"account"`
	Owner               *string    `json:"owner"`
	PreviousOwner       *string    `json:"previous_owner"`
	Status              Status     `json:"status"`
	ScheduledAt         *time.Time `json:"scheduled_at"`
	PreviousScheduledAt *time.Time `json:"previous_scheduled_at"`
	Minutes             int        `json:"minutes"`
	Outcome             string     `json:"outcome"`
	// Version counts the activity's changes; it is the seq of the change's event.
	Version   int64     `json:"version"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	UpdatedAt time.Time `json:"updated_at"`
	UpdatedBy string    `json:"updated_by"`
}

// Activity is what the service answers with.
type Activity struct {
	Snapshot
	Details string `json:"details"`
}

// columns are what every change returns, in the order of scanActivity.
const columns = `organization, id, kind, subject, account, owner, previous_owner, status, scheduled_at, previous_scheduled_at,
	minutes, outcome, version, created_at, created_by, updated_at, updated_by, details`

func scanActivity(row pgx.CollectableRow) (Activity, error) {
	var a Activity
	err := row.Scan(&a.Organization, &a.ID, &a.Kind, &a.Subject, &a.Account, &a.Owner, &a.PreviousOwner, &a.Status, &a.ScheduledAt,
		&a.PreviousScheduledAt, &a.Minutes, &a.Outcome, &a.Version, &a.CreatedAt, &a.CreatedBy, &a.UpdatedAt, &a.UpdatedBy, &a.Details)
	for _, t := range []*time.Time{a.ScheduledAt, a.PreviousScheduledAt, &a.CreatedAt, &a.UpdatedAt} {
		if t != nil {
			*t = t.UTC()
		}
	}
	return a, err
}
