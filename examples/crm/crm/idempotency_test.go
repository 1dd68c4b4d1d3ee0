package crm_test

import (
	"errors"
	"testing"

	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
)

// Promise (P2): a request that is sent again under its idempotency key gets the
// first answer and writes nothing, whatever has happened since.
func TestARepeatedRequestGetsTheFirstAnswerAndWritesNothing(t *testing.T) {
	each(t, func(t *testing.T, a *crmtest.App, op operation) {
		id := op.ready(a)
		request := crmtest.By("zoe")
		request.IdempotencyKey = "key"
		first, err := op.do(t.Context(), a.Service, request, id)
		if err != nil {
			t.Fatal(err)
		}
		if op.name != crm.OpDelete {
			if _, err := a.Service.AddNote(t.Context(), crmtest.By("carol"), first.ID, "meanwhile"); err != nil {
				t.Fatal(err)
			}
		}
		before := a.State()
		again, err := op.do(t.Context(), a.Service, request, id)
		if err != nil || mustJSON(t, again) != mustJSON(t, first) {
			t.Errorf("%v\nfirst %+v\nagain %+v", err, first, again)
		}
		other := request
		other.IfVersion = 9
		if _, err := op.do(t.Context(), a.Service, other, id); !errors.Is(err, crm.ErrKeyReused) {
			t.Errorf("another request with the key: %v", err)
		}
		if a.State() != before {
			t.Error("something was written")
		}
		elsewhere := request
		elsewhere.Organization = "other"
		if _, err := op.do(t.Context(), a.Service, elsewhere, id); errors.Is(err, crm.ErrKeyReused) {
			t.Error("the key is taken in another organization too")
		}
	})
}

// Promise (P2): copies of one request that arrive at the same time are carried out once.
func TestConcurrentCopiesOfARequestAreCarriedOutOnce(t *testing.T) {
	each(t, func(t *testing.T, a *crmtest.App, op operation) {
		id := op.ready(a)
		events := crmtest.Get[int64](a, "select count(*) from keyline.events")
		request := crmtest.By("zoe")
		request.IdempotencyKey = "key"
		const copies = 6
		answers := make(chan string, copies)
		for range copies {
			go func() {
				got, err := op.do(t.Context(), a.Service, request, id)
				if err != nil {
					answers <- "error: " + err.Error()
					return
				}
				answers <- got.ID.String() + " " + got.UpdatedAt.String()
			}()
		}
		first := <-answers
		for range copies - 1 {
			if answer := <-answers; answer != first {
				t.Errorf("answers %q and %q", first, answer)
			}
		}
		if n := crmtest.Get[int64](a, "select count(*) from keyline.events"); n != events+1 {
			t.Errorf("%d events for %d copies of a request: %s", n-events, copies, first)
		}
	})
}

// Promise (P1): of two changes that exclude each other one is made and the
// other refused, however they meet.
func TestOfTwoChangesThatExcludeEachOtherOneIsMade(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	for range 20 {
		id := a.Create().ID
		errs := make(chan error, 2)
		go func() {
			_, err := a.Service.Complete(t.Context(), crmtest.By("alice"), id, "sold")
			errs <- err
		}()
		go func() {
			_, err := a.Service.Cancel(t.Context(), crmtest.By("bob"), id, "no time")
			errs <- err
		}()
		one, two := <-errs, <-errs
		if one != nil {
			one, two = two, one
		}
		if one != nil || !errors.Is(two, crm.ErrTransition) {
			t.Fatalf("%v and %v", one, two)
		}
		if n := len(a.Events(id)); n != 2 {
			t.Fatalf("%d events", n)
		}
	}
}

// Promise: a change that was decided on an older version is refused.
func TestAStaleChangeIsRefused(t *testing.T) {
	t.Parallel()
	a := crmtest.New(t)
	seen := a.Create()
	request := crmtest.By("alice")
	request.IfVersion = seen.Version
	if _, err := a.Service.Start(t.Context(), request, seen.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Service.Complete(t.Context(), request, seen.ID, "sold"); !errors.Is(err, crm.ErrStale) {
		t.Errorf("%v, want ErrStale", err)
	}
}
