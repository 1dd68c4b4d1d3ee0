package keyline_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// tenants is an installation with a dead letter of each of two tenants, on
// records of one name, with a head in backoff beside it.
type tenants struct {
	db         *testdb.DB
	dead, late map[string]uuid.UUID // events, by tenant
	ids        map[string]int64     // dead letters, by tenant
	acme       keyline.Operator     // of the tenant acme
	all        keyline.Operator
}

func newTenants(t *testing.T) *tenants {
	t.Helper()
	s := &tenants{db: testdb.New(t), dead: map[string]uuid.UUID{}, late: map[string]uuid.UUID{}, ids: map[string]int64{}}
	startWorker(t, s.db, keyline.Config{}, newSwitched().consumer("dies", func(c *keyline.Consumer) { c.Types = []string{"dead"} }),
		newSwitched().consumer("waits", backoff, func(c *keyline.Consumer) { c.Types = []string{"late"} }))
	client := newClient(t, keyline.ClientConfig{})
	for _, tenant := range []string{"acme", "other", ""} {
		key := keyline.Key{Tenant: tenant, Record: "thing:1"}
		s.dead[tenant] = must(client.Append(t.Context(), s.db.Pool(), keyline.NewEvent{Key: key, Type: "dead"}))(t).ID
		s.late[tenant] = must(client.Append(t.Context(), s.db.Pool(), keyline.NewEvent{Key: key, Type: "late"}))(t).ID
	}
	deadLetters(t, s.db, 3)
	testdb.Eventually(t, func() bool {
		return scalar[int](t, s.db.Pool(), "select count(*) from keyline.checkpoints where state = 'backoff'") == 3
	}, "all wait")
	for tenant, event := range s.dead {
		s.ids[tenant] = scalar[int64](t, s.db.Pool(), "select id from keyline.dead_letters where event_id = $1", event)
	}
	s.all = newOperator(t, s.db, keyline.RoleOperator)
	s.acme = must(keyline.NewOperator(s.db.Pool(), keyline.OperatorConfig{Actor: "olga", Role: keyline.RoleOperator, Tenant: ptr("acme")}))(t)
	return s
}

func key(tenant string) keyline.Key { return keyline.Key{Tenant: tenant, Record: "thing:1"} }

// scopedMethods are the methods of Operator that are about records: each answers for
// the tenant that it is given, and once more for something that is not there.
func (s *tenants) scopedMethods(ctx context.Context) map[string]struct {
	of      func(tenant string) error
	missing func() error // nil: it lists
} {
	type method = struct {
		of      func(tenant string) error
		missing func() error
	}
	nobody, o := uuid.MustParse("0197c2a0-5b1e-7c9a-8f3e-2d1c0b9a8f7e"), s.acme
	event := func(f func(uuid.UUID) error) method {
		return method{func(tenant string) error { return f(s.dead[tenant]) }, func() error { return f(nobody) }}
	}
	return map[string]method{
		"InspectEvent":  event(func(id uuid.UUID) error { _, err := o.InspectEvent(ctx, id); return err }),
		"TraceEvent":    event(func(id uuid.UUID) error { _, err := o.TraceEvent(ctx, id); return err }),
		"RetryConsumer": event(func(id uuid.UUID) error { _, err := o.RetryConsumer(ctx, id, "dies", "r"); return err }),
		"RetryEvent": {func(tenant string) error { _, err := o.RetryEvent(ctx, s.late[tenant], "r"); return err },
			func() error { _, err := o.RetryEvent(ctx, nobody, "r"); return err }},
		"InspectRecord": {func(tenant string) error { _, err := o.InspectRecord(ctx, key(tenant), 5); return err },
			func() error { _, err := o.InspectRecord(ctx, key("nobody"), 5); return err }},
		"Why": {func(tenant string) error { _, err := o.Why(ctx, key(tenant)); return err },
			func() error { _, err := o.Why(ctx, key("nobody")); return err }},
		"Events": {func(tenant string) error { _, err := o.Events(ctx, key(tenant), keyline.EventFilter{}); return err },
			func() error { _, err := o.Events(ctx, key("nobody"), keyline.EventFilter{}); return err }},
		"Payload": event(func(id uuid.UUID) error { _, err := o.Payload(ctx, id, "r"); return err }),
		"RetryDeadLetter": {func(tenant string) error { _, err := o.RetryDeadLetter(ctx, s.ids[tenant], "r"); return err },
			func() error { _, err := o.RetryDeadLetter(ctx, 99, "r"); return err }},
		"ResolveDeadLetter": {func(tenant string) error { _, err := o.ResolveDeadLetter(ctx, s.ids[tenant], "r"); return err },
			func() error { _, err := o.ResolveDeadLetter(ctx, 99, "r"); return err }},
		"SkipHead": {func(tenant string) error { _, err := o.SkipHead(ctx, key(tenant), "waits", 0, "r"); return err },
			func() error { _, err := o.SkipHead(ctx, key("nobody"), "waits", 0, "r"); return err }},
	}
}

// listMethods are those that take a filter or list.
// Of tokens there is a test of its own.
var listMethods = []string{"Tokens", "CreateToken", "RevokeToken", "DeadLetters", "RetryDeadLetters", "ResolveDeadLetters", "Audit", "Behind", "Records"}

// wholeMethods are those that concern all tenants.
func (s *tenants) wholeMethods(ctx context.Context) map[string]func(keyline.Operator) error {
	return map[string]func(keyline.Operator) error{
		"PauseConsumer":      func(o keyline.Operator) error { return o.PauseConsumer(ctx, "dies", "r") },
		"ResumeConsumer":     func(o keyline.Operator) error { return o.ResumeConsumer(ctx, "dies", "r") },
		"DisableConsumer":    func(o keyline.Operator) error { return o.DisableConsumer(ctx, "dies", "r") },
		"RetireConsumer":     func(o keyline.Operator) error { return o.RetireConsumer(ctx, "dies", "r") },
		"RecoverStaleClaims": func(o keyline.Operator) error { _, err := o.RecoverStaleClaims(ctx, "r"); return err },
		"DrainWorker":        func(o keyline.Operator) error { _, err := o.DrainWorker(ctx, 1, "r"); return err },
		"Prune":              func(o keyline.Operator) error { _, err := o.Prune(ctx, "r", keyline.PruneOptions{}); return err },
		"ConsumerHealth":     func(o keyline.Operator) error { _, err := o.ConsumerHealth(ctx); return err },
		"Overview":           func(o keyline.Operator) error { _, err := o.Overview(ctx); return err },
		"Consumers":          func(o keyline.Operator) error { _, err := o.Consumers(ctx); return err },
		"Stuck":              func(o keyline.Operator) error { _, err := o.Stuck(ctx, 5); return err },
		"Workers":            func(o keyline.Operator) error { _, err := o.Workers(ctx); return err },
		"InspectConsumer":    func(o keyline.Operator) error { _, err := o.InspectConsumer(ctx, "dies"); return err },
		"Verify":             func(o keyline.Operator) error { _, err := o.Verify(ctx, keyline.VerifyOptions{}); return err },
	}
}

func TestATenantsOperatorFindsNothingOfOtherTenants(t *testing.T) {
	t.Parallel()
	s := newTenants(t)
	before := s.state(t)
	for name, m := range s.scopedMethods(t.Context()) {
		missing := wantError(t, m.missing(), keyline.ErrNotFound, keyline.CodeNotFound)
		for _, tenant := range []string{"other", ""} {
			err := wantError(t, m.of(tenant), keyline.ErrNotFound, keyline.CodeNotFound)
			// What is another tenant's and what is not there read alike, but for the name that was asked for.
			if kind, absent := err.Message[:16], missing.Message[:16]; kind != absent {
				t.Errorf("%s of %q: %q, of what is not there: %q", name, tenant, err.Message, missing.Message)
			}
		}
		if after := s.state(t); after != before {
			t.Fatalf("%s changed %s to %s", name, before, after)
		}
	}
	for name, f := range s.wholeMethods(t.Context()) {
		wantError(t, f(s.acme), nil, keyline.CodePermissionDenied)
		if after := s.state(t); after != before {
			t.Fatalf("%s changed %s to %s", name, before, after)
		}
	}
}

// state is all that acts change, of all tenants but acme, and of the installation.
func (s *tenants) state(t *testing.T) string {
	t.Helper()
	return scalar[string](t, s.db.Pool(), `select concat(
		(select string_agg(concat(d.id, d.status, d.attempt), ',' order by d.id) from keyline.dead_letters d join keyline.records r on r.id = d.record_id where r.tenant <> 'acme'), ' ',
		(select string_agg(concat(k.record_id, k.seq, k.state, k.attempt), ',' order by k.record_id, k.consumer_id) from keyline.checkpoints k join keyline.records r on r.id = k.record_id where r.tenant <> 'acme'), ' ',
		(select count(*) from keyline.commands c join keyline.records r on r.id = c.record_id where r.tenant <> 'acme'), ' ',
		(select string_agg(name || status, ',' order by name) from keyline.consumers), ' ', (select string_agg(concat(status, drain_at), ',' order by id) from keyline.workers))`)
}

func TestATenantsOperatorActsOnItsOwnRecords(t *testing.T) {
	t.Parallel()
	s, ctx := newTenants(t), t.Context()
	before := s.state(t)
	methods := s.scopedMethods(ctx)
	// What ends things comes last.
	for _, name := range []string{"InspectEvent", "TraceEvent", "Payload", "InspectRecord", "Events", "Why", "RetryEvent", "RetryConsumer", "RetryDeadLetter", "ResolveDeadLetter", "SkipHead"} {
		if name == "RetryDeadLetter" || name == "ResolveDeadLetter" { // it died again meanwhile
			deadLetters(t, s.db, 3)
		}
		if name == "SkipHead" {
			testdb.Eventually(t, func() bool {
				return scalar[int](t, s.db.Pool(), "select count(*) from keyline.checkpoints where state = 'backoff'") == 3
			}, "it waits again")
		}
		if err := methods[name].of("acme"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := s.state(t); after != before {
		t.Errorf("others went from %s to %s", before, after)
	}
	// The audit: its own lines alone, though there are others.
	must(s.all.RetryEvent(ctx, s.late["other"], "r"))(t)
	if err := s.all.PauseConsumer(ctx, "dies", "r"); err != nil {
		t.Fatal(err)
	}
	mine, all := must(s.acme.Audit(ctx, keyline.AuditFilter{}))(t), must(s.all.Audit(ctx, keyline.AuditFilter{}))(t)
	if len(mine) != 6 || len(all) != 8 {
		t.Errorf("%d lines of %d", len(mine), len(all))
	}
	for _, line := range mine {
		if !strings.Contains(line.Target, "acme/thing:1 #") && !strings.HasSuffix(line.Target, " of thing:1 of tenant acme") {
			t.Errorf("a line of others: %+v", line)
		}
	}
}

func TestATenantsOperatorListsAndActsInBulkOnItsOwn(t *testing.T) {
	t.Parallel()
	s, ctx := newTenants(t), t.Context()
	for name, f := range map[string]keyline.DeadLetterFilter{"no tenant": {}, "its own": {Tenant: ptr("acme")}} {
		list := must(s.acme.DeadLetters(ctx, f))(t)
		if len(list) != 1 || list[0].Tenant != "acme" {
			t.Errorf("%s: %+v", name, list)
		}
	}
	for name, f := range map[string]keyline.RecordFilter{"no tenant": {}, "its own": {Tenant: ptr("acme")}, "a prefix": {Prefix: "thing"}} {
		if list := must(s.acme.Records(ctx, f))(t); len(list) != 1 || list[0].Tenant != "acme" {
			t.Errorf("records, %s: %+v", name, list)
		}
	}
	for _, f := range []keyline.RecordFilter{{Tenant: ptr("other")}, {Tenant: ptr("")}, {After: &keyline.Key{Tenant: "other"}}} {
		for _, r := range must(s.acme.Records(ctx, f))(t) {
			if r.Tenant != "acme" {
				t.Errorf("records of %+v: %+v", f, r)
			}
		}
	}
	for name, f := range map[string]keyline.BehindFilter{"no tenant": {}, "its own": {Tenant: ptr("acme")}} {
		list := must(s.acme.Behind(ctx, "waits", f))(t).Records
		if len(list) != 1 || list[0].Tenant != "acme" {
			t.Errorf("behind, %s: %+v", name, list)
		}
	}
	before := s.state(t)
	for _, tenant := range []string{"other", ""} {
		if list := must(s.acme.Behind(ctx, "waits", keyline.BehindFilter{Tenant: &tenant}))(t).Records; len(list) != 0 {
			t.Errorf("behind of %q: %+v", tenant, list)
		}
		f := keyline.DeadLetterFilter{Tenant: &tenant}
		if list := must(s.acme.DeadLetters(ctx, f))(t); len(list) != 0 {
			t.Errorf("of %q: %+v", tenant, list)
		}
		if list := must(s.acme.DeadLetters(ctx, keyline.DeadLetterFilter{ID: s.ids[tenant]}))(t); len(list) != 0 {
			t.Errorf("by id: %+v", list)
		}
		if r := must(s.acme.RetryDeadLetters(ctx, f, "r", keyline.BulkOptions{DryRun: true}))(t); r.Matched != 0 {
			t.Errorf("%+v", r)
		}
		for _, bulk := range []func(context.Context, keyline.DeadLetterFilter, string, keyline.BulkOptions) (keyline.BulkReport, error){
			s.acme.RetryDeadLetters, s.acme.ResolveDeadLetters} {
			_, err := bulk(ctx, f, "r", keyline.BulkOptions{})
			wantError(t, err, keyline.ErrConflict, keyline.CodeNothingToDo)
		}
	}
	if r := must(s.acme.RetryDeadLetters(ctx, keyline.DeadLetterFilter{}, "r", keyline.BulkOptions{}))(t); r.Matched != 1 || r.Applied != 1 {
		t.Errorf("%+v", r)
	}
	deadLetters(t, s.db, 3)
	if r := must(s.acme.ResolveDeadLetters(ctx, keyline.DeadLetterFilter{}, "r", keyline.BulkOptions{}))(t); r.Matched != 1 || r.Applied != 1 {
		t.Errorf("%+v", r)
	}
	if after := s.state(t); after != before {
		t.Errorf("others went from %s to %s", before, after)
	}
}

// A method that is added has to say which kind it is.
func TestEveryMethodOfAnOperatorIsScoped(t *testing.T) {
	t.Parallel()
	s := &tenants{}
	known := slices.Clone(listMethods)
	for name := range s.scopedMethods(t.Context()) {
		known = append(known, name)
	}
	for name := range s.wholeMethods(t.Context()) {
		known = append(known, name)
	}
	for m := range reflect.TypeFor[keyline.Operator]().Methods() {
		if !slices.Contains(known, m.Name) {
			t.Errorf("no test says what %s shows of other tenants", m.Name)
		}
	}
	slices.Sort(known)
	if n := reflect.TypeFor[keyline.Operator]().NumMethod(); len(slices.Compact(known)) != n {
		t.Errorf("%d methods are known of %d", len(known), n)
	}
}
