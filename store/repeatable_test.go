package store

import (
	"errors"
	"testing"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// newRepeatableRig has a store whose sessions are at REPEATABLE READ by default.
func newRepeatableRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.exec("alter database " + r.db.Name + " set default_transaction_isolation = 'repeatable read'")
	s := on(t, r.db)
	var level string
	if err := s.lease.QueryRow(t.Context(), "show transaction_isolation").Scan(&level); err != nil || level != "repeatable read" {
		t.Fatalf("the default is %q, %v", level, err)
	}
	return s
}

// A renewal, a farewell and an observer's mark may meet on a worker's row. Who
// comes second must see what the first did, and not fail for having waited.
func TestAtRepeatableReadAWorkersRowIsWaitedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		first string
		waits string // of the second's statement
		then  func(r *rig) error
		want  error
	}{
		"renew after renew": {"update keyline.workers set beat = beat + 1 where id = $1", "workers", func(r *rig) error { return r.Renew(r.Context(), r.me, nil) }, nil},
		"leave after renew": {"update keyline.workers set beat = beat + 1 where id = $1", "workers", func(r *rig) error { return r.Leave(r.Context(), r.me) }, nil},
		"renew after mark": {"update keyline.workers set status = 'lost', ended_at = now() where id = $1", "workers",
			func(r *rig) error { return r.Renew(r.Context(), r.me, nil) }, keylinetype.ErrFenced},
		"mark after renew": {"update keyline.workers set beat = beat + 1 where id = $1", "mark_lost", func(r *rig) error {
			marked, err := r.MarkLost(r.Context(), core.Beat{Worker: r.me})
			if marked {
				err = errors.New("marked lost though it has renewed")
			}
			return err
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepeatableRig(t)
			first := r.begin()
			r.in(first, tc.first, r.me)
			then := background(func() error { return tc.then(r) })
			r.blocked(tc.waits)
			r.commit(first)
			if err := soon(r, then, "the second"); !errors.Is(err, tc.want) || (tc.want == nil && err != nil) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

// Commands and claims wait for, or pass over, what others have changed since.
func TestAtRepeatableReadACommandWaitsForAnAppend(t *testing.T) {
	r := newRepeatableRig(t)
	id := r.append("r")
	tx := r.opened("r")
	given := background(func() error {
		o := &Operate{r.Store} // whose sessions begin at REPEATABLE READ
		_, err := o.Give(t.Context(), core.Command{Record: id, Kind: core.CommandRetry, Actor: "op"}, "r")
		return err
	})
	r.blocked(".lock_record(")
	r.commit(tx)
	if err := soon(r, given, "the command"); err != nil {
		t.Error(err)
	}
}

func TestAtRepeatableReadNothingIsClaimedTwiceAndNothingFails(t *testing.T) {
	r := newRepeatableRig(t)
	const n = 300
	if err := r.BareSeed(t.Context(), "r", n, 1); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		claims []core.Claim
		err    error
	}
	answers := make(chan answer)
	const workers = 4
	for range workers {
		w := on(t, r.db)
		go func() {
			var a answer
			for a.err == nil {
				var claims []core.Claim
				claims, a.err = w.Claim(t.Context(), core.ClaimRequest{Worker: w.me, Limit: 7})
				if len(claims) == 0 {
					break
				}
				a.claims = append(a.claims, claims...)
			}
			answers <- a
		}()
	}
	owners := map[int64]bool{}
	for range workers {
		a := soon(r, answers, "a worker")
		if a.err != nil {
			t.Error(a.err)
		}
		for _, c := range a.claims {
			if owners[c.Record] {
				t.Errorf("record %d is claimed twice", c.Record)
			}
			owners[c.Record] = true
		}
	}
	if len(owners) != n {
		t.Errorf("%d of %d are claimed", len(owners), n)
	}
}
