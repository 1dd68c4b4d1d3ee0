package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
)

// idleSeats is how many seats are kept for re-use when nothing is claimed.
const idleSeats = 64

// newsLoop asks after the records that have been here for a while, in one
// query for all: new events, commands, another registry.
func (s *Supervisor) newsLoop() func(context.Context) error {
	lastAsked := s.cfg.Clock.Mono() // for what is asked once a lease
	var lastUsed time.Duration
	return func(ctx context.Context) error {
		for {
			if clock.Sleep(ctx, s.cfg.Clock, s.cfg.NewsEvery) != nil {
				return nil
			}
			now := s.cfg.Clock.Mono()
			resident := s.table.residents(now, s.cfg.NewsEvery)
			s.gate.nudge()
			if s.room.n.Load() > int64(s.cfg.MaxResident/2) {
				s.gate.shed(s.cfg.NewsEvery)
			}
			if s.room.n.Load() > 0 {
				lastUsed = now
			} else if now-lastUsed > s.cfg.Lease {
				s.trim()
			}
			// Without residents the registry's epoch is asked for, now and then:
			// it decides what this worker claims for. And due times: other
			// workers' hand-backs may be due before what is known here.
			if len(resident) == 0 && now-lastAsked < s.cfg.Lease {
				continue
			}
			if err := s.askNews(ctx, resident); err != nil {
				return err
			}
			if now-lastAsked >= s.cfg.Lease {
				if err := s.refreshDue(ctx); err != nil {
					return err
				}
				lastAsked = now
			}
			s.health.worked("news")
		}
	}
}

func (s *Supervisor) askNews(ctx context.Context, list []resident) error {
	records := make([]int64, len(list))
	byRecord := make(map[int64]resident, len(list))
	for i, r := range list {
		records[i] = r.claim.Record
		byRecord[r.claim.Record] = r
	}
	epoch, news, err := s.cfg.Deliveries.News(ctx, records)
	if err != nil {
		s.noticeFence(err)
		return fmt.Errorf("news of %d records: %w", len(records), err)
	}
	now := s.cfg.Clock.Mono()
	for _, n := range news {
		r, ok := byRecord[n.Record]
		if !ok {
			continue
		}
		if n.Pending || n.Head != r.head {
			r.place.seat.News(n.Record, r.claim.Token, n.Head, n.Pending)
		}
		s.table.told(r, now, n.Head)
	}
	if epoch == s.registry.Load().Epoch {
		return nil
	}
	_, err = s.refreshRegistry(ctx)
	return err
}

// trim stops the actors of seats that nobody needs any more.
func (s *Supervisor) trim() {
	for _, p := range s.table.trim(idleSeats) {
		if pid := p.seat.PID(); pid != nil {
			s.system.Root.Stop(pid)
		}
		p.seat.Abandon()
	}
}
