package listener

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// allEnd leaves no transaction open.
func allEnd(*twinTx) bool { return false }

var txShapes = [][]string{
	{"append", "commit"},
	{"append", "append", "commit"},
	{"append", "abort"},
	{"savepoint", "append", "rollback", "commit"},
	{"savepoint", "append", "rollback", "append", "commit"},
	{"append", "savepoint", "append", "rollback", "commit"},
	{"wants", "commit"},
	{"append", "wants", "commit"},
}

// choices is where a schedule's randomness comes from.
type choices interface{ IntN(n int) int }

// drawn lets rapid choose, so that it can shrink.
type drawn struct{ t *rapid.T }

func (d drawn) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(d.t, "choice") }

// drawTwin makes workers, not all of which need host the same.
func drawTwin(ch choices) *twin {
	hosts := [][]int32{{7}}
	for range ch.IntN(3) {
		if ch.IntN(2) == 0 {
			hosts = append(hosts, []int32{7})
		} else {
			hosts = append(hosts, nil)
		}
	}
	s := newTwin(ch.IntN, twinTiming, hosts...)
	s.retries = ch.IntN(4)
	if len(hosts) > 1 && ch.IntN(4) == 0 {
		s.workers[ch.IntN(len(hosts))].deaf = true
	}
	return s
}

// round begins some transactions, lets things happen, faults among them, and
// then lets everything come to rest but the transactions that stay open.
func round(ch choices, s *twin, open func(*twinTx) bool) error {
	for range 1 + ch.IntN(4) {
		s.txs = append(s.txs, &twinTx{ops: slices.Clone(txShapes[ch.IntN(len(txShapes))])})
	}
	for range ch.IntN(61) {
		s.do(s.but(open, s.steps(ch.IntN(10) == 0)))
	}
	return s.comesToRest(open)
}

// comesToRest lets everything happen that can, after which nothing may wait that somebody could claim.
func (s *twin) comesToRest(open func(*twinTx) bool) error {
	if err := s.settle(open); err != nil {
		return fmt.Errorf("%w: %v", err, s)
	}
	if lost := s.waiting(); len(lost) > 0 {
		return fmt.Errorf("nobody claims records %v: %v", lost, s)
	}
	return nil
}

// anyRounds is a schedule in which all transactions end.
func anyRounds(ch choices, s *twin) error {
	for range 1 + ch.IntN(3) {
		if err := round(ch, s, allEnd); err != nil {
			return err
		}
	}
	return nil
}

// besideAnOpenOne is a schedule beside a transaction that has decided that
// nobody sleeps, and stays open until all others have ended.
func besideAnOpenOne(ch choices, s *twin) error {
	long := &twinTx{ops: []string{"append", "commit"}}
	s.txs = append(s.txs, long)
	s.txStep(long) // decides before anybody sleeps
	for range 1 + ch.IntN(3) {
		if err := round(ch, s, func(tx *twinTx) bool { return tx == long }); err != nil {
			return err
		}
	}
	if s.seen["wake granted"] > 0 && !s.unshared {
		return fmt.Errorf("the sleep lock was granted beside a shared holder: %v", s)
	}
	return s.comesToRest(allEnd) // and when it ends, that alone is the wake-up
}

// checks runs a property more often than the default.
func checks(t *testing.T, property func(*rapid.T)) {
	for range 5 {
		rapid.Check(t, property)
	}
}

// In every interleaving, committed work is claimed without a fallback poll:
// either the appender notified somebody who answers, or a worker claims after
// the transaction has ended. Cancelled requests that are granted all the same,
// lost sessions, lost listen connections, rearming, saturation, rollbacks to
// savepoints, retries and workers that host different consumers included.
func TestPolicyLosesNoWakeUp(t *testing.T) {
	seen := map[string]int{}
	checks(t, func(t *rapid.T) {
		s := drawTwin(drawn{t})
		if err := anyRounds(drawn{t}, s); err != nil {
			t.Fatal(err)
		}
		s.addSeen(seen)
	})
	requireSeen(t, seen, "decided: nobody sleeps", "decided: notify", "granted though cancelled",
		"retry", "wake granted", "wake notified", "wake due", "wake linger", "wake catch_up", "wake reconnected")
}

// A transaction that stays open, having decided that nobody sleeps, holds up
// its own work alone: what others commit meanwhile is claimed, though no worker
// can get the sleep lock.
func TestPolicyOneOpenTransactionHoldsUpNobodyElse(t *testing.T) {
	seen := map[string]int{}
	checks(t, func(t *rapid.T) {
		s := drawTwin(drawn{t})
		if err := besideAnOpenOne(drawn{t}, s); err != nil {
			t.Fatal(err)
		}
		s.addSeen(seen)
	})
	requireSeen(t, seen, "decided: nobody sleeps", "decided: notify", "wake catch_up", "wake notified")
}

// requireSeen fails a property whose runs never came into a situation that it
// claims to cover.
func requireSeen(t *testing.T, seen map[string]int, want ...string) {
	t.Helper()
	for _, w := range want {
		if seen[w] == 0 {
			t.Errorf("no run has seen %q, only %v", w, slices.Sorted(maps.Keys(seen)))
		}
	}
}

// Every interleaving there is of a transaction with one worker, from the start
// of both to rest. States that were met before are not entered again.
func TestPolicyLosesNoWakeUpExhaustively(t *testing.T) {
	for _, shapes := range [][][]string{
		txShapes[0:1], txShapes[1:2], txShapes[3:4], txShapes[4:5], txShapes[5:6],
	} {
		states, rests := explore(t, shapes)
		t.Logf("%v: %d states, %d ends", shapes, states, rests)
		if rests == 0 {
			t.Errorf("%v: no run came to rest", shapes)
		}
	}
}

// explore goes depth first through all choices, replaying from the start.
func explore(t *testing.T, shapes [][]string) (states, rests int) {
	var path, width []int
	seen := map[string]bool{}
	// One catch-up poll and the shortest lingering, to keep it small.
	timing := twinTiming
	timing.Linger = timing.LingerPoll
	for {
		at := 0
		s := newTwin(func(n int) int {
			if at == len(path) {
				path, width = append(path, 0), append(width, n)
			}
			at++
			return path[at-1]
		}, timing, []int32{7})
		s.horizon = 15 * time.Millisecond
		s.workers[0].hears = true
		for _, shape := range shapes {
			s.txs = append(s.txs, &twinTx{ops: shape})
		}
		for {
			steps := s.steps(false)
			if len(steps) == 0 {
				rests++
				if lost := s.waiting(); len(lost) > 0 {
					t.Fatalf("%v: records %v are not claimed: %v", shapes, lost, s)
				}
				break
			}
			if at >= len(path) { // new ground, not the replay of a path
				print := s.fingerprint()
				if seen[print] {
					break
				}
				seen[print] = true
			}
			s.do(steps)
		}
		for len(path) > 0 && path[len(path)-1]+1 == width[len(width)-1] {
			path, width = path[:len(path)-1], width[:len(width)-1]
		}
		if len(path) == 0 {
			return len(seen), rests
		}
		path[len(path)-1]++
	}
}
