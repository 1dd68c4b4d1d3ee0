package api

import (
	"sync"

	"golang.org/x/time/rate"

	"github.com/keylinehq/keyline/internal/clock"
)

// How often one address may show what is no token before it is told to wait.
const (
	failuresPerSecond = 1
	failuresBurst     = 20
)

// mostLimiters bounds how many tokens and addresses are remembered.
const mostLimiters = 10_000

// limits bound how much each token may ask for, and how often an address may fail.
type limits struct {
	clock    clock.Clock
	perToken rate.Limit
	burst    int

	mu       sync.Mutex
	tokens   map[int64]*rate.Limiter
	failures map[string]*rate.Limiter
}

func newLimits(c clock.Clock, perSecond float64, burst int) *limits {
	return &limits{clock: c, perToken: rate.Limit(perSecond), burst: burst, tokens: map[int64]*rate.Limiter{}, failures: map[string]*rate.Limiter{}}
}

// token reports whether a token may ask once more.
func (l *limits) token(id int64) bool { return allow(l, l.tokens, id, l.perToken, l.burst) }

// failure reports whether an address may still fail.
func (l *limits) failure(address string) bool {
	return allow(l, l.failures, address, failuresPerSecond, failuresBurst)
}

func allow[K comparable](l *limits, of map[K]*rate.Limiter, key K, limit rate.Limit, burst int) bool {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := of[key]
	if limiter == nil {
		if len(of) >= mostLimiters {
			for k, idle := range of { // who has asked for nothing lately loses nothing by it
				if idle.TokensAt(now) >= float64(idle.Burst()) {
					delete(of, k)
				}
			}
		}
		if len(of) >= mostLimiters {
			return false
		}
		limiter = rate.NewLimiter(limit, burst)
		of[key] = limiter
	}
	return limiter.AllowN(now, 1)
}
