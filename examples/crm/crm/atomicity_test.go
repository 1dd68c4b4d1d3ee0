package crm_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
)

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const boom = `
create function public.boom() returns trigger language plpgsql as $$ begin raise exception 'boom' using errcode = 'P0B00'; end $$;`

// sabotages are what fails in the database, and how it is mended.
var sabotages = map[string][2]string{
	"the event's insert fails":  {`create trigger boom before insert on keyline.events for each row execute function public.boom()`, `drop trigger boom on keyline.events`},
	"the audit write fails":     {`create trigger boom before insert on crm.audit_log for each row execute function public.boom()`, `drop trigger boom on crm.audit_log`},
	"the commit fails":          {`create constraint trigger boom after insert on crm.audit_log deferrable initially deferred for each row execute function public.boom()`, `drop trigger boom on crm.audit_log`},
	"the answer cannot be kept": {`create trigger boom before update on crm.requests for each row execute function public.boom()`, `drop trigger boom on crm.requests`},
	"the wake fails":            {`create trigger boom before insert or update on keyline.mailboxes for each row execute function public.boom()`, `drop trigger boom on keyline.mailboxes`},
}

// Promise (P1): whatever of the transaction fails, nothing of it is there; and
// the same request, sent again, then succeeds.
func TestEachOperationLeavesNothingWhereAnyPartOfItFails(t *testing.T) {
	each(t, func(t *testing.T, a *crmtest.App, op operation) {
		id := op.ready(a)
		a.Exec("delete from keyline.mailboxes") // so that each append makes one
		a.Exec(boom)
		request := crmtest.By("zoe")
		request.IdempotencyKey = "the same"
		before := a.State()
		for name, sql := range sabotages {
			a.Exec(sql[0])
			got, err := op.do(t.Context(), a.Service, request, id)
			var state interface{ SQLState() string }
			if !errors.As(err, &state) || state.SQLState() != "P0B00" {
				t.Errorf("%s: %v", name, err)
			}
			if got.ID != uuid.Nil {
				t.Errorf("%s: answered with %+v", name, got)
			}
			if after := a.State(); after != before {
				t.Errorf("%s: it left something\nbefore %s\nafter %s", name, before, after)
			}
			a.Exec(sql[1])
		}
		if _, err := op.do(t.Context(), a.Service, request, id); err != nil {
			t.Errorf("mended: %v", err)
		}
	})
}

// Promise (P1): what does not pass validation writes nothing, of any kind.
func TestEachOperationWritesNothingWhereItIsInvalid(t *testing.T) {
	each(t, func(t *testing.T, a *crmtest.App, op operation) {
		id := op.ready(a)
		before := a.State()
		bad := map[string]do{}
		for name, f := range op.never {
			bad[name] = f
		}
		for name, change := range map[string]func(*crm.Request){
			"organization":    func(r *crm.Request) { r.Organization = "" },
			"actor":           func(r *crm.Request) { r.Actor = " " },
			"idempotency_key": func(r *crm.Request) { r.IdempotencyKey = long },
			"version":         func(r *crm.Request) { r.IfVersion = -1 },
		} {
			bad[name+" of the request"] = func(ctx context.Context, s *crm.Service, r crm.Request, id uuid.UUID) (crm.Activity, error) {
				change(&r)
				return op.do(ctx, s, r, id)
			}
		}
		for name, f := range bad {
			_, err := f(t.Context(), a.Service, crmtest.By("zoe"), id)
			var invalid *crm.InvalidError
			if !errors.As(err, &invalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if after := a.State(); after != before {
			t.Errorf("something was written\nbefore %s\nafter %s", before, after)
		}
	})
}

// Promise (P1, P13): what the activity's state does not allow writes nothing;
// nor does another tenant's request, who does not even learn that it exists.
func TestEachOperationWritesNothingWhereItIsRefused(t *testing.T) {
	each(t, func(t *testing.T, a *crmtest.App, op operation) {
		if op.name == crm.OpCreate {
			t.Skip("nothing refuses it")
		}
		id := op.ready(a)
		check := func(name string, want error, change func(*crm.Request, *uuid.UUID)) {
			t.Helper()
			before := a.State()
			request, target := crmtest.By("zoe"), id
			request.IdempotencyKey = "key"
			change(&request, &target)
			if _, err := op.do(t.Context(), a.Service, request, target); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
			if after := a.State(); after != before {
				t.Errorf("%s: something was written\nbefore %s\nafter %s", name, before, after)
			}
		}
		check("unknown", crm.ErrNotFound, func(_ *crm.Request, id *uuid.UUID) { *id = uuid.New() })
		check("another tenant's", crm.ErrNotFound, func(r *crm.Request, _ *uuid.UUID) { r.Organization = "other" })
		check("another version", crm.ErrStale, func(r *crm.Request, _ *uuid.UUID) { r.IfVersion = 7 })
		a.Complete(id)
		if op.closed {
			check("completed", crm.ErrTransition, func(*crm.Request, *uuid.UUID) {})
		}
	})
}

// Promise (P1): no operation opens a second transaction: with one connection
// in the pool that one would wait for ever.
func TestEachOperationNeedsOneConnection(t *testing.T) {
	each(t, func(t *testing.T, a *crmtest.App, op operation) {
		id := op.ready(a)
		single := crm.NewService(a.NewPool(func(c *pgxpool.Config) { c.MaxConns = 1 }), a.Client)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		request := crmtest.By("zoe")
		request.IdempotencyKey = "key"
		if _, err := op.do(ctx, single, request, id); err != nil {
			t.Error(err)
		}
		if _, err := op.do(ctx, single, request, id); err != nil {
			t.Errorf("repeated: %v", err)
		}
		if _, err := op.do(ctx, single, crmtest.By("zoe"), uuid.New()); op.name != crm.OpCreate && !errors.Is(err, crm.ErrNotFound) {
			t.Errorf("refused: %v", err)
		}
	})
}

// Promise (P2): the registry is strict. What is not registered is refused, on
// both sides, and takes the mutation back with it.
func TestAnEventThatIsNotRegisteredTakesTheMutationBack(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	id := a.Create().ID
	a.Exec("delete from keyline.event_types where type = 'activity.started'")
	before := a.State()
	if _, err := a.Service.Start(t.Context(), crmtest.By("zoe"), id); !errors.Is(err, keyline.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
	if a.State() != before {
		t.Error("it left something")
	}
	if _, err := a.Client.Append(t.Context(), a.Pool, keyline.NewEvent{Key: crm.Key(crmtest.Org, id), Type: "activity.liked"}); !errors.Is(err, keyline.ErrInvalid) {
		t.Errorf("an unknown type: %v", err)
	}
	if _, err := a.Client.Append(t.Context(), a.Pool, keyline.NewEvent{Key: crm.Key(crmtest.Org, id), Type: "activity.updated", Payload: map[string]int{"x": 1}}); !errors.Is(err, keyline.ErrInvalid) {
		t.Errorf("a payload that is no activity: %v", err)
	}
	if a.State() != before {
		t.Error("a refused append left something")
	}
}

// forger appends another payload than it was given.
type forger struct {
	keyline.Publisher
	forge func(*keyline.NewEvent)
}

func (f forger) Append(ctx context.Context, db keyline.PGX, e keyline.NewEvent) (keyline.Appended, error) {
	f.forge(&e)
	return f.Publisher.Append(ctx, db, e)
}

// Promise (P2): each type's schema holds it to its own state.
func TestASchemaHoldsItsTypeToItsState(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	for _, op := range operations(t) {
		switch op.name {
		case crm.OpUpdate, crm.OpDelete, crm.OpNote:
			continue // in any state
		}
		id := op.ready(a)
		s := crm.NewService(a.Pool, forger{a.Client, func(e *keyline.NewEvent) {
			p := e.Payload.(crm.Snapshot)
			p.Status, p.Owner, p.ScheduledAt = "completed", nil, nil
			if op.name == crm.OpComplete {
				p.Outcome = ""
			}
			e.Payload = p
		}})
		if _, err := op.do(t.Context(), s, crmtest.By("zoe"), id); !errors.Is(err, keyline.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", op.name, err)
		}
	}
}

// Promise (P1): an activity's version is its stream's head; where anything else
// appended to the stream, a change fails instead of going on beside its history.
func TestAStreamThatSomethingElseAppendedToIsNoticed(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	created := a.Create()
	payload := created.Snapshot
	if _, err := a.Client.Append(t.Context(), a.Pool, keyline.NewEvent{Key: crm.Key(crmtest.Org, created.ID), Type: "activity.updated", Payload: payload}); err != nil {
		t.Fatal(err)
	}
	before := a.State()
	if _, err := a.Service.Start(t.Context(), crmtest.By("zoe"), created.ID); !errors.Is(err, keyline.ErrConflict) {
		t.Errorf("%v, want ErrConflict", err)
	}
	if a.State() != before {
		t.Error("it left something")
	}
}

// Promise: the audit log is not changed afterwards.
func TestTheAuditLogIsAppendOnly(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	a.Create()
	for _, sql := range []string{"update crm.audit_log set actor = 'nobody'", "delete from crm.audit_log", "truncate crm.audit_log"} {
		if _, err := a.Pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s is taken", sql)
		}
	}
}

// Promise (P14): the service does with an in-process publisher what it does
// with a client; the event is handed over inside its transaction.
func TestTheServiceWorksWithAnInProcessPublisher(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	a.Exec("delete from keyline.event_types") // the types are published in process here
	p, err := keyline.NewInProcess(keyline.ClientConfig{EventTypes: crm.EventTypes()}, []string{"activity.created", "activity.completed"},
		crmtest.Without(a.Consumers(), "dashboard")...)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Claim(t.Context(), a.Pool); err != nil {
		t.Fatal(err)
	}
	s := crm.NewService(a.Pool, p)
	created, err := s.Create(t.Context(), crmtest.By("alice"), crm.NewActivity{Kind: "call", Subject: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Complete(t.Context(), crmtest.By("alice"), created.ID, "sold"); err != nil {
		t.Fatal(err)
	}
	if n := crmtest.Get[int64](a, "select count(*) from crm.timeline where activity_id = $1", created.ID); n != 2 {
		t.Errorf("%d lines in the timeline", n)
	}
	if n := len(p.Events(crm.Key(crmtest.Org, created.ID))); n != 2 {
		t.Errorf("%d events", n)
	}
}
