package crm_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
)

// operation is one of the service's, as tests run all of them.
type operation struct {
	name      crm.Operation
	eventType string
	version   int
	// ready makes an activity to which it can be done.
	ready func(*crmtest.App) uuid.UUID
	do    func(context.Context, *crm.Service, crm.Request, uuid.UUID) (crm.Activity, error)
	// never can be accepted, whatever the activity is.
	never map[string]func(context.Context, *crm.Service, crm.Request, uuid.UUID) (crm.Activity, error)
	// closed is whether it is refused once the activity is completed.
	closed bool
}

type do = func(context.Context, *crm.Service, crm.Request, uuid.UUID) (crm.Activity, error)

func owned(a *crmtest.App) uuid.UUID { return a.Create().ID }

func ownerless(t testing.TB) func(*crmtest.App) uuid.UUID {
	return func(a *crmtest.App) uuid.UUID {
		t.Helper()
		activity, err := a.Service.Create(t.Context(), crmtest.By("alice"), crm.NewActivity{Kind: "task", Subject: "Find a contact"})
		if err != nil {
			t.Fatal(err)
		}
		return activity.ID
	}
}

var long = fmt.Sprintf("%0501d", 0)

func operations(t testing.TB) []operation {
	create := func(n crm.NewActivity) do {
		return func(ctx context.Context, s *crm.Service, r crm.Request, _ uuid.UUID) (crm.Activity, error) {
			return s.Create(ctx, r, n)
		}
	}
	text := func(f func(*crm.Service, context.Context, crm.Request, uuid.UUID, string) (crm.Activity, error), word string) do {
		return func(ctx context.Context, s *crm.Service, r crm.Request, id uuid.UUID) (crm.Activity, error) {
			return f(s, ctx, r, id, word)
		}
	}
	update := func(c crm.Changes) do {
		return func(ctx context.Context, s *crm.Service, r crm.Request, id uuid.UUID) (crm.Activity, error) {
			return s.Update(ctx, r, id, c)
		}
	}
	reschedule := func(slot crm.Slot) do {
		return func(ctx context.Context, s *crm.Service, r crm.Request, id uuid.UUID) (crm.Activity, error) {
			return s.Reschedule(ctx, r, id, slot)
		}
	}
	later := time.Date(2026, 4, 1, 10, 0, 0, 0, time.UTC)
	return []operation{
		{crm.OpCreate, "activity.created", 1, owned, create(crm.NewActivity{Kind: "meeting", Subject: "Kick-off", Owner: crmtest.Ptr("bob")}), map[string]do{
			"kind": create(crm.NewActivity{Kind: "lunch", Subject: "x"}), "subject": create(crm.NewActivity{Kind: "call", Subject: " "}),
			"minutes": create(crm.NewActivity{Kind: "call", Subject: "x", Minutes: 1441}), "owner": create(crm.NewActivity{Kind: "call", Subject: "x", Owner: crmtest.Ptr("")}),
			"scheduled_at": create(crm.NewActivity{Kind: "call", Subject: "x", ScheduledAt: &time.Time{}}),
			"details":      create(crm.NewActivity{Kind: "call", Subject: "x", Details: "a\x00b"}),
		}, false},
		{crm.OpUpdate, "activity.updated", 1, owned, update(crm.Changes{Subject: crmtest.Ptr("Ask again"), Details: crmtest.Ptr("secret")}), map[string]do{
			"changes": update(crm.Changes{}), "subject": update(crm.Changes{Subject: crmtest.Ptr("")}),
		}, true},
		{crm.OpAssign, "activity.assigned", 1, ownerless(t), text((*crm.Service).Assign, "carol"), map[string]do{"owner": text((*crm.Service).Assign, "")}, true},
		{crm.OpReassign, "activity.reassigned", 1, owned, text((*crm.Service).Reassign, "carol"), map[string]do{"owner": text((*crm.Service).Reassign, " ")}, true},
		{crm.OpStart, "activity.started", 1, owned,
			func(ctx context.Context, s *crm.Service, r crm.Request, id uuid.UUID) (crm.Activity, error) {
				return s.Start(ctx, r, id)
			}, nil, true},
		{crm.OpReschedule, "activity.rescheduled", 1, owned, reschedule(crm.Slot{ScheduledAt: later}), map[string]do{
			"scheduled_at": reschedule(crm.Slot{}), "minutes": reschedule(crm.Slot{ScheduledAt: later, Minutes: -1}),
		}, true},
		{crm.OpComplete, "activity.completed", 2, owned, text((*crm.Service).Complete, "sold"), map[string]do{"outcome": text((*crm.Service).Complete, ""), "outcome, long": text((*crm.Service).Complete, long)}, true},
		{crm.OpCancel, "activity.cancelled", 1, owned, text((*crm.Service).Cancel, "no time"), map[string]do{"reason": text((*crm.Service).Cancel, long)}, true},
		{crm.OpDelete, "activity.deleted", 1, owned,
			func(ctx context.Context, s *crm.Service, r crm.Request, id uuid.UUID) (crm.Activity, error) {
				return s.Delete(ctx, r, id)
			}, nil, true},
		{crm.OpNote, crm.TypeNoteInternal, 1, owned, text((*crm.Service).AddNote, "be careful"), map[string]do{"body": text((*crm.Service).AddNote, "")}, false},
	}
}

// each runs a test for each operation, on an application of its own.
func each(t *testing.T, test func(*testing.T, *crmtest.App, operation)) {
	t.Helper()
	t.Parallel()
	for _, op := range operations(t) {
		t.Run(string(op.name), func(t *testing.T) {
			t.Parallel()
			test(t, crmtest.New(t), op)
		})
	}
}

// Promise (P1): the mutation, its event and its audit entry are of one
// transaction, and the event's payload is the row that the mutation returned.
func TestEachOperationWritesMutationEventAndAuditInOneTransaction(t *testing.T) {
	each(t, func(t *testing.T, a *crmtest.App, op operation) {
		id := op.ready(a)
		got, err := op.do(t.Context(), a.Service, crmtest.By("zoe"), id)
		if err != nil {
			t.Fatal(err)
		}
		events := a.Events(got.ID)
		last := events[len(events)-1]
		if last.Type != op.eventType || last.Version != op.version || last.Seq != got.Version || !last.OccurredAt.Equal(got.UpdatedAt) {
			t.Errorf("the last event is %s v%d seq %d at %v; the activity %+v", last.Type, last.Version, last.Seq, last.OccurredAt, got)
		}
		if last.Headers["correlation_id"] != "correlation" || last.Headers["causation_id"] != "causation" {
			t.Errorf("headers %v", last.Headers)
		}
		checkPayload(t, a, op, got)
		var actor, action string
		var at time.Time
		if err := a.Pool.QueryRow(t.Context(), `select actor, action, at from crm.audit_log where event_id = $1 and activity_id = $2 and version = $3`,
			last.ID, got.ID, got.Version).Scan(&actor, &action, &at); err != nil {
			t.Fatalf("audit entry: %v", err)
		}
		if actor != "zoe" || action != string(op.name) || !at.Equal(got.UpdatedAt) {
			t.Errorf("audit entry says %s did %s at %v", actor, action, at)
		}
		if n := crmtest.Get[int64](a, `select count(*) from crm.audit_log`); n != crmtest.Get[int64](a, `select count(*) from keyline.events`) {
			t.Errorf("%d audit entries, another number of events", n)
		}
		// xmin is the transaction that wrote a row.
		writers := `select count(distinct x) from (
			select xmin::text as x from keyline.events where id = $1
			union all select xmin::text from crm.audit_log where event_id = $1
			union all select xmin::text from crm.activities where id = $2
			union all select xmin::text from crm.internal_notes where activity_id = $2) w`
		if n := crmtest.Get[int64](a, writers, last.ID, got.ID); n != 1 {
			t.Errorf("%d transactions wrote what should be of one", n)
		}
	})
}

// checkPayload compares the event's payload with the row, column by column, in the database.
func checkPayload(t *testing.T, a *crmtest.App, op operation, got crm.Activity) {
	t.Helper()
	payload := `(select e.payload from keyline.events e join keyline.records r on r.id = e.record_id
		where r.record_key = 'activity:' || $1::uuid order by e.seq desc limit 1)`
	switch op.name {
	case crm.OpNote:
		if !crmtest.Get[bool](a, `select `+payload+` = jsonb_build_object('organization', n.organization, 'activity_id', n.activity_id, 'version', n.version, 'author', n.author)
			from crm.internal_notes n where n.activity_id = $1`, got.ID) {
			t.Error("the payload is not the note without its body")
		}
		return
	case crm.OpDelete:
		if crmtest.Get[int64](a, `select count(*) from crm.activities where id = $1`, got.ID) != 0 {
			t.Fatal("the activity is still there")
		}
	default:
		if !crmtest.Get[bool](a, `select jsonb_populate_record(null::crm.activities, `+payload+` || jsonb_build_object('details', t.details)) is not distinct from t
			from crm.activities t where t.id = $1`, got.ID) {
			t.Errorf("the payload %s is not the row", crmtest.Get[string](a, `select `+payload+`::text`, got.ID))
		}
	}
	var s crm.Snapshot
	if err := a.Pool.QueryRow(t.Context(), `select `+payload, got.ID).Scan(&s); err != nil {
		t.Fatal(err)
	}
	if want, have := fmt.Sprint(mustJSON(t, got.Snapshot)), fmt.Sprint(mustJSON(t, s)); want != have {
		t.Errorf("payload %s, answer %s", have, want)
	}
	if crmtest.Get[bool](a, `select `+payload+` ? 'details'`, got.ID) {
		t.Error("details are in the event")
	}
}
