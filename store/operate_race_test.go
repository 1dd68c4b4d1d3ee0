package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// registryRace is four operators who pause, resume, disable, retire, rename and build anew the same consumers at the same time.
type registryRace struct {
	*rig
	mu    sync.Mutex
	names map[string][]string // all that a consumer was called, the present name last; by the first
	told  map[string]told     // what an act was told, by its actor, which is its own
}

// told is what an act was told: one on a status, or a registration, of which there is no audit.
type told struct {
	status bool
	error
}

// act draws an act and does it as this actor.
func (r *registryRace) act(random *clock.Rand, on *Store, actor string) {
	r.mu.Lock()
	var all []string
	for first := range r.names {
		all = append(all, first)
	}
	slices.Sort(all)
	first := all[random.IntN(len(all))]
	names := slices.Clone(r.names[first])
	r.mu.Unlock()
	now := names[len(names)-1]
	switch random.IntN(12) {
	case 0: // a new version renames it
		next := fmt.Sprintf("%s-%s", first, actor)
		r.note(actor, told{false, on.Register(r.Context(), []Definition{definition(next, revision(1+len(names)), func(d *Definition) { d.PreviousNames = names })}, "")})
		r.renamed(first, next)
	case 1: // the version of before starts once more
		r.note(actor, told{false, on.Register(r.Context(), []Definition{definition(names[0])}, "")})
	case 2: // built anew beside the present one
		r.note(actor, told{false, on.Register(r.Context(), []Definition{definition("anew-"+actor, func(d *Definition) { d.Start = keylinetype.Beginning() })}, "")})
		r.mu.Lock()
		r.names["anew-"+actor] = []string{"anew-" + actor}
		r.mu.Unlock()
	default:
		to := []core.Status{core.Paused, core.Active, core.Active, core.Disabled, core.Retired}[random.IntN(5)]
		if to == core.Retired && random.IntN(6) > 0 {
			to = core.Paused
		}
		r.note(actor, told{true, on.SetStatus(r.Context(), now, to, actor, "")})
	}
}

// renamed keeps a name that the registry has taken.
func (r *registryRace) renamed(first, next string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if get[int64](r.rig, "select count(*) from keyline.consumers where name = $1", next) == 1 {
		r.names[first] = append(r.names[first], next)
	}
}

func (r *registryRace) note(actor string, what told) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told[actor] = what
}

// Promise: whatever operators do to the registry at the same time, what comes of it is what one after the other would have made: the audit, in
// its order, is a history of allowed changes that ends in what is; each that was told "done" has one line of it, and each
// that was refused none, and was told why. And all that the changes leave to be done on records comes to its end.
func TestOperatorsWhoChangeTheRegistryAtOnceDoItOneAfterTheOther(t *testing.T) {
	rig := newRig(t)
	random := seeded(t)
	r := &registryRace{rig: rig, names: map[string][]string{}, told: map[string]told{}}
	for _, name := range []string{"a", "b", "c"} {
		r.register(definition(name))
		r.names[name] = []string{name}
	}
	for i := range 40 {
		r.append(keyOf(i), "t", "t")
	}
	const operators, each = 4, 25
	var wg, sweeping sync.WaitGroup
	stop := make(chan struct{})
	sweeping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := r.Sweep(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for i := range operators {
		own, on := clock.NewRand(random.Seed()+uint64(i)), openStore(t, r.db)
		wg.Go(func() {
			for n := range each {
				r.act(own, on, fmt.Sprintf("op%d-%d", i, n))
			}
		})
	}
	wg.Wait()
	close(stop)
	sweeping.Wait()
	r.sweepAll()
	r.judge()
}

// judge compares what was told, the audit, and what is.
func (r *registryRace) judge() {
	r.Helper()
	lines := map[string]int{}
	status := map[string]core.Status{}
	for _, l := range get[[]string](r.rig, "select array_agg(actor || ' ' || action || ' ' || target order by id) from keyline.audit") {
		words := strings.Fields(l)
		actor, to := words[0], core.Status(strings.TrimPrefix(words[1], "consumer_"))
		first := firstName(words[2])
		lines[actor]++
		from, known := status[first]
		if !known {
			if from = core.Active; strings.HasPrefix(first, "anew-") {
				from = core.Backfilling
			}
		}
		_, may := transitions[from][to]
		if _, later := transitions[core.Active][to]; !may && !(from == core.Backfilling && later) { // its backfill ends without an act
			r.Errorf("by the audit %s became %s while it was %s: %s", first, to, from, l)
		}
		status[first] = to
	}
	done := 0
	for actor, was := range r.told {
		switch err := was.error; {
		case err == nil && was.status && lines[actor] != 1:
			r.Errorf("%s was told that it is done, and is in the audit %d times", actor, lines[actor])
		case err == nil && was.status:
			done++
		case err != nil && !errors.Is(err, keylinetype.ErrConflict) && !errors.Is(err, keylinetype.ErrNotFound):
			r.Errorf("%s was told %v", actor, err)
		case err != nil && lines[actor] != 0:
			r.Errorf("%s was refused (%v), and is in the audit", actor, err)
		case errors.Is(err, keylinetype.ErrNotFound) && !strings.Contains(err.Error(), "is called"):
			r.Errorf("%s was told %v of a consumer that was renamed", actor, err)
		}
	}
	seen := map[string]bool{}
	for _, c := range r.registry().Consumers {
		first := firstName(c.Name)
		if seen[first] {
			r.Errorf("%s is there twice", first)
		}
		seen[first] = true
		want, known := status[first]
		if !known {
			want = core.Active
		}
		if c.Status != want {
			r.Errorf("%s is %s, by the audit it is %s", c.Name, c.Status, want)
		}
	}
	if len(seen) != len(r.names) {
		r.Errorf("%d consumers, want %d", len(seen), len(r.names))
	}
	for what, sql := range map[string]string{
		"sweeps that do not end":                    "select count(*) from keyline.consumers where sweep is not null",
		"records that a sweep has left":             "select count(*) from keyline.sweep_left",
		"rows of consumers that have lost them":     "select count(*) from keyline.checkpoints k join keyline.consumers c on c.id = k.consumer_id where c.status in ('disabled', 'retired')",
		"consumers that are still being backfilled": "select count(*) from keyline.consumers where status = 'backfilling'",
	} {
		if n := get[int64](r.rig, sql); n != 0 {
			r.Errorf("%d %s", n, what)
		}
	}
	if v, err := (&Operate{r.Store}).Verify(r.Context(), VerifyOptions{}); err != nil || !v.OK {
		r.Errorf("verify: %+v, %v", v.Checks, err)
	}
	if done < 10 || done == len(r.told) {
		r.Errorf("%d of %d acts were done: they did not meet", done, len(r.told))
	}
}

// firstName is what a consumer was called first.
func firstName(name string) string {
	if strings.HasPrefix(name, "anew-") {
		parts := strings.SplitN(name, "-", 4) // anew-op0-1, and what it was renamed to
		return strings.Join(parts[:min(len(parts), 3)], "-")
	}
	first, _, _ := strings.Cut(name, "-")
	return first
}
