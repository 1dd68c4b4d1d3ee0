package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// What a handler's error becomes besides a retry is booked in its transaction too.
func TestADeadLetterOrASkipIsBookedWithItsCheckpoint(t *testing.T) {
	at := time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, book := range map[string]func(x *txRig, b *core.Booking){
		"dead_letters": func(x *txRig, b *core.Booking) {
			b.DeadLetter = &core.DeadLetter{Record: x.work.Record, Seq: 1, Consumer: x.consumer, Attempt: 1, EventID: uuid.New(), Reason: core.DeadPermanent,
				Code: "boom", Message: "bang", FirstFailedAt: at, FailedAt: at}
		},
		"skips": func(x *txRig, b *core.Booking) {
			b.Skip = &core.Skip{Record: x.work.Record, Seq: 1, Consumer: x.consumer, Attempt: 1, Code: "handler", Reason: "not ours", At: at}
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTxRig(t)
			out := x.RunTx(t.Context(), x.work, func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(effect(1)(ctx, tx), errBoom)
			}, func(error) core.Booking {
				b := core.Booking{Checkpoint: core.Checkpoint{Record: x.work.Record, Consumer: x.consumer, Seq: 1, State: core.Ready}}
				book(x, &b)
				return b
			})
			if !errors.Is(out.Err, errBoom) || out.Booked == nil || x.row() != "1 ready 0" || x.effects() != 0 {
				t.Errorf("%+v, row %s, %d effects", out, x.row(), x.effects())
			}
			if n := x.count(name, "record_id = $1 and seq = 1 and consumer_id = $2", x.work.Record, x.consumer); n != 1 {
				t.Errorf("%d rows in %s", n, name)
			}
		})
	}
}

// The flush that books it then writes it without its texts.
func TestAnErrorTextThatCannotBeWrittenLeavesTheDeliveryToTheFlush(t *testing.T) {
	x := newTxRig(t)
	bad := fmt.Errorf("bad\x00text: %w", errBoom)
	out := x.run(func(ctx context.Context, tx pgx.Tx) error { return errors.Join(effect(1)(ctx, tx), bad) })
	if !errors.Is(out.Err, errBoom) || out.Booked != nil || out.Fenced || x.row() != "0 ready 0" || x.effects() != 0 {
		t.Errorf("%+v, row %s, %d effects", out, x.row(), x.effects())
	}
	if out := x.run(effect(1)); out.Err != nil || out.Booked == nil {
		t.Errorf("the next one: %+v", out)
	}
}

// Nothing has run, and nothing says that it has not: the flush books a failure.
func TestATransactionThatCannotBeBegunIsAnUnbookedFailure(t *testing.T) {
	var down atomic.Bool
	x := newTxRig(t, func(c *Config) {
		c.Pool.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if down.Load() {
				return nil, errCut
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	never := func(context.Context, pgx.Tx) error {
		t.Error("it ran")
		return nil
	}
	down.Store(true)
	out := x.run(never)
	if !errors.Is(out.Err, keylinetype.ErrUnavailable) || out.Booked != nil || out.Fenced {
		t.Errorf("%+v", out)
	}
	down.Store(false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out = x.RunTx(ctx, x.work, never, completed(x.work.Record, x.consumer, 1))
	if !errors.Is(out.Err, context.Canceled) || out.Booked != nil || out.Fenced {
		t.Errorf("under a context that has ended: %+v", out)
	}
	if out := x.run(effect(1)); out.Err != nil || out.Booked == nil {
		t.Errorf("the next one: %+v", out)
	}
}

// The time of a handler's context may be over when it returns; what it did is
// booked all the same, or a slow success would be repeated for ever.
func TestAHandlerWhoseContextHasEndedIsBooked(t *testing.T) {
	x := newTxRig(t)
	for i, returns := range []error{errBoom, nil} {
		ctx, cancel := context.WithCancel(t.Context())
		out := x.RunTx(ctx, x.work, func(ctx context.Context, tx pgx.Tx) error {
			err := effect(1)(ctx, tx)
			cancel()
			return errors.Join(err, returns)
		}, completed(x.work.Record, x.consumer, 1))
		if out.Booked == nil || out.Fenced || !errors.Is(out.Err, returns) {
			t.Errorf("%+v", out)
		}
		if want := []string{"0 backoff 1", "1 ready 0"}[i]; x.row() != want {
			t.Errorf("row %s, want %s", x.row(), want)
		}
	}
}

// A row that is gone (its consumer was disabled meanwhile) is no success.
func TestAHandlerWhoseRowIsGoneIsFencedAndWritesNothing(t *testing.T) {
	x := newTxRig(t)
	out := x.run(func(ctx context.Context, tx pgx.Tx) error {
		x.exec("delete from keyline.checkpoints")
		return effect(1)(ctx, tx)
	})
	if !out.Fenced || out.Booked != nil || x.effects() != 0 || x.rig.count("checkpoints", "") != 0 {
		t.Errorf("%+v, %d effects", out, x.effects())
	}
}

// The row says what this run would have said, but another holder wrote it.
func TestARowThatMovedUnderALostClaimIsNobodysSuccess(t *testing.T) {
	x := newTxRig(t)
	out := x.run(func(ctx context.Context, tx pgx.Tx) error {
		x.exec("update keyline.mailboxes set token = nextval('keyline.tokens')")
		x.exec("update keyline.checkpoints set seq = 1")
		return effect(1)(ctx, tx)
	})
	if !out.Fenced || out.Booked != nil || x.effects() != 0 {
		t.Errorf("%+v, %d effects", out, x.effects())
	}
}
