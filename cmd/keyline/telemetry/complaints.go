package telemetry

import (
	"log/slog"
	"sync"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
)

// complainEvery is how often the log is told at most that something could not be sent: an exporter says so of each few hundred spans.
const complainEvery = 30 * time.Second

// complaints tell a logger what OpenTelemetry could not do. It is an otel.ErrorHandler.
type complaints struct {
	log   *slog.Logger
	clock clock.Clock

	mu    sync.Mutex
	told  bool
	last  time.Duration // when it was told, monotonic
	since int           // how many were not, since then
}

// Handle implements otel.ErrorHandler.
func (c *complaints) Handle(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Mono()
	if c.told && now-c.last < complainEvery {
		c.since++
		return
	}
	c.log.Warn("telemetry", "error", err, "unsaid", c.since)
	c.told, c.last, c.since = true, now, 0
}
