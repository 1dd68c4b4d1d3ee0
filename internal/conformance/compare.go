package conformance

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/keylinehq/keyline/internal/clock"
)

var (
	compareSeed = flag.Uint64("conformance.seed", 0, "compare along the sequence of this seed alone; 0: some drawn ones")
	compareRuns = flag.Int("conformance.runs", 4, "how many sequences are compared")
	compareLen  = flag.Int("conformance.steps", 250, "how many operations each has")
)

// Compare drives two installations through the same random operations, and
// compares every answer and, after each, all rows. A failure tells its seed and
// the operations: -conformance.seed runs them again.
func Compare(t *testing.T, one, other New) {
	seeds := []uint64{*compareSeed}
	if *compareSeed == 0 {
		seeds = nil
		for range *compareRuns {
			seeds = append(seeds, clock.RandomSeed()>>12)
		}
	}
	var (
		mu  sync.Mutex
		did = map[string]int{} // by all of them
	)
	t.Run("sequences", func(t *testing.T) {
		for _, seed := range seeds {
			t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
				t.Parallel()
				c := &comparison{T: t, ch: clock.NewRand(seed), sides: [2]*side{newSide(t, one), newSide(t, other)}, did: map[string]int{}}
				for range *compareLen {
					c.step()
				}
				mu.Lock()
				defer mu.Unlock()
				for what, n := range c.did {
					did[what] += n
				}
			})
		}
	})
	t.Log(did)
	if len(seeds)**compareLen >= 800 && !t.Failed() {
		enough(t, did)
	}
}

// enough fails where many operations say less than they seem to.
func enough(t *testing.T, did map[string]int) {
	t.Helper()
	for _, want := range []string{"flush kept", "flush gone", "flush fenced", "flush epoch", "transaction booked true", "transaction booked false",
		"claim 0", "claim 1", "load 1", "status true", "status false", "leave left", "lost marked"} {
		if did[want] == 0 {
			t.Errorf("no operation ended with %q", want)
		}
	}
	for _, o := range operations {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(did)), func(what string) bool { return strings.HasPrefix(what, o.name+" ") }) {
			t.Errorf("there was no %s", o.name)
		}
	}
}

// comparison is one sequence.
type comparison struct {
	*testing.T
	ch    *clock.Rand
	sides [2]*side
	world
	log []string
	did map[string]int
}

// operation is one that both sides are put through: it answers as text.
type operation struct {
	name   string
	weight int
	// draw makes the operation from what both sides look like; nil: it is not possible now.
	draw func(*comparison) (what string, do func(*side) string)
}

func (c *comparison) step() {
	c.Helper()
	c.world = look(c.sides[0])
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	for {
		n := c.ch.IntN(total)
		for _, o := range operations {
			if n -= o.weight; n >= 0 {
				continue
			}
			what, do := o.draw(c)
			if do == nil {
				break // another one
			}
			c.perform(o.name, what, do)
			return
		}
	}
}

func (c *comparison) perform(name, what string, do func(*side) string) {
	c.Helper()
	c.log = append(c.log, name+" "+what)
	var answers, rows [2]string
	for i, s := range c.sides {
		answers[i] = do(s)
		rows[i] = Text(s.Rows(), s.Now())
	}
	words := strings.Fields(answers[0])
	if name == "transaction" {
		words = []string{strings.Join(words[:2], " ")}
	}
	c.did[name+" "+words[0]]++
	c.log = append(c.log, "    "+strings.TrimSpace(answers[0]))
	if answers[0] != answers[1] {
		c.Fatalf("%s\nThe first side answers\n%s\nand the other\n%s", c.history(), answers[0], answers[1])
	}
	if rows[0] != rows[1] {
		c.Fatalf("%s\nThen the first side has\n%s\nand the other instead\n%s", c.history(), rows[0], without(rows[1], rows[0]))
	}
}

// without are the lines of a text that another has not.
func without(text, other string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(other, line) {
			b.WriteString(line)
		}
	}
	return b.String()
}

func (c *comparison) history() string {
	const most = 80
	return strings.Join(c.log[max(0, len(c.log)-most):], "\n")
}
