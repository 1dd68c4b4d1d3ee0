package store

import (
	"sync/atomic"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
)

// databaseClock shows the database's time: what two processes must agree on
// (when a retry is due) is decided by it. Between readings the local monotonic clock
// carries it on, so that a step of the local wall clock moves nothing.
type databaseClock struct {
	clock.Clock
	reading atomic.Pointer[reading]
	// setBack: times in the database may lie in the future by mistake, since its clock was set back.
	setBack atomic.Bool
}

// stepSlack is more than two readings differ by for other reasons than a step.
const stepSlack = time.Second

// reading is the database's time at a local monotonic time.
type reading struct {
	database time.Time
	mono     time.Duration
}

// Now returns the database's time as of the last reading, carried on.
func (c *databaseClock) Now() time.Time {
	r := c.reading.Load()
	if r == nil {
		return c.Clock.Now()
	}
	return r.database.Add(c.Mono() - r.mono)
}

// read takes a reading: the database answered at a time between the two local ones.
//
// Where it shows an earlier time than was to be expected, the database's clock has been set back.
func (c *databaseClock) read(database time.Time, before, after time.Duration) {
	if last := c.reading.Load(); last != nil && last.database.Add(before-last.mono).Sub(database) > stepSlack {
		c.setBack.Store(true)
	}
	c.reading.Store(&reading{database: database, mono: before + (after-before)/2})
}

// Clock returns the clock that shows the database's time.
func (s *Store) Clock() clock.Clock { return s.clock }
