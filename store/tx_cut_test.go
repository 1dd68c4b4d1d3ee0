package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

// cutter is a dialer whose connections can be cut around the statements that end a HandleTx transaction.
type cutter struct {
	armed atomic.Bool
	// before: they are never sent; otherwise they are, and their reply is lost.
	before bool
	// late: they are held up on the way, until somebody asks what became of the transaction; arrived is closed then.
	late      bool
	asked     chan struct{}
	askedOnce sync.Once
	arrived   chan struct{}
	// keep: the server is not told that its client is gone.
	keep bool
	// meanwhile is called when the reply has come, and is lost.
	meanwhile func()

	mu   sync.Mutex
	kept []net.Conn
}

func (c *cutter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &cut{Conn: conn, by: c}, err
}

func (c *cutter) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.kept {
		_ = conn.Close()
	}
}

type cut struct {
	net.Conn
	by  *cutter
	off atomic.Bool
}

var errCut = errors.New("the connection was cut")

func (c *cut) Write(b []byte) (int, error) {
	if c.off.Load() {
		return 0, errCut
	}
	if c.by.late && cancels(b) {
		return 0, errCut // what is late is to be carried out: the driver, which has given its connection up, would have it cancelled
	}
	if c.by.late && strings.Contains(string(b), "pg_xact_status") {
		c.by.askedOnce.Do(func() { close(c.by.asked) })
	}
	if executes(b) && c.by.armed.CompareAndSwap(true, false) {
		c.off.Store(true)
		if c.by.late {
			sent := bytes.Clone(b)
			go func() {
				defer close(c.by.arrived)
				<-c.by.asked
				_, _ = c.Conn.Write(sent)
			}()
		}
		if c.by.before || c.by.late {
			return len(b), nil // sent, it believes
		}
	}
	return c.Conn.Write(b)
}

// cancels reports whether what is sent asks the server to cancel what another connection runs.
func cancels(b []byte) bool {
	const code = 80877102
	return len(b) == 16 && binary.BigEndian.Uint32(b[4:]) == code
}

// executes reports whether what is sent binds a prepared statement: what only prepares one does not.
func executes(b []byte) bool {
	for len(b) > 5 {
		if b[0] == 'B' {
			return true
		}
		b = b[min(len(b), 1+int(binary.BigEndian.Uint32(b[1:]))):]
	}
	return false
}

func (c *cut) Read(b []byte) (int, error) {
	if c.off.Load() && (c.by.before || c.by.late) {
		return 0, errCut
	}
	n, err := c.Conn.Read(b)
	if c.off.Load() { // the reply has come, so it has committed
		if c.by.meanwhile != nil {
			c.by.meanwhile()
			c.by.meanwhile = nil
		}
		return 0, errCut
	}
	return n, err
}

func (c *cut) Close() error {
	if c.by.keep && c.off.Load() {
		c.by.mu.Lock()
		defer c.by.mu.Unlock()
		c.by.kept = append(c.by.kept, c.Conn)
		return nil
	}
	return c.Conn.Close()
}

func TestACommitWhoseReplyWasLostIsLookedInto(t *testing.T) {
	for name, tc := range map[string]struct {
		before, keep, fails bool
	}{
		"committed success":                                    {},
		"committed failure":                                    {fails: true},
		"never arrived":                                        {before: true},
		"never arrived, the failure":                           {before: true, fails: true},
		"never arrived, and the server still waits":            {before: true, keep: true},
		"committed, and the server still waits for the client": {keep: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cutter{before: tc.before, keep: tc.keep}
			defer c.close()
			x := newTxRig(t, func(cfg *Config) { cfg.Pool.ConnConfig.DialFunc = c.dial })
			out := x.run(func(ctx context.Context, tx pgx.Tx) error {
				err := effect(1)(ctx, tx)
				c.armed.Store(true)
				if tc.fails {
					return errBoom
				}
				return err
			})
			committed, handled := !tc.before, tc.fails
			switch {
			case out.Fenced || out.Cancelled:
				t.Fatalf("%+v", out)
			case committed && (out.Booked == nil || errors.Is(out.Err, errBoom) != handled):
				t.Errorf("it had committed: %+v", out)
			case !committed && (out.Booked != nil || out.Err == nil || errors.Is(out.Err, errBoom) != handled):
				t.Errorf("it had not: %+v", out)
			}
			want := map[[2]bool]string{{true, false}: "1 ready 0", {true, true}: "0 backoff 1"}[[2]bool{committed, handled}]
			if want == "" {
				want = "0 ready 0"
			}
			if x.row() != want {
				t.Errorf("row %s, want %s", x.row(), want)
			}
			if n := x.effects(); n != map[bool]int64{true: 1}[committed && !handled] {
				t.Errorf("%d effects", n)
			}
		})
	}
}

// Promise: no attempt is charged for what was committed, also where disabling has swept away the row that tells it.
func TestACommitThatTheRowDoesNotTellOfIsNotCharged(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile string
		fails     bool
	}{
		"swept away":                        {meanwhile: "delete from keyline.checkpoints"},
		"swept away, and back at its place": {meanwhile: "update keyline.checkpoints set seq = 0"},
		"swept away, and back beyond it":    {meanwhile: "update keyline.checkpoints set seq = 2"},
		"a failure, swept away":             {meanwhile: "delete from keyline.checkpoints", fails: true},
		"a failure, and as it was before": {meanwhile: `update keyline.checkpoints set seq = 0, state = 'ready', attempt = 0,
			next_attempt_at = null, first_failed_at = null, error_code = null`, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cutter{}
			defer c.close()
			x := newTxRig(t, func(cfg *Config) { cfg.Pool.ConnConfig.DialFunc = c.dial })
			c.meanwhile = func() { x.exec(tc.meanwhile) }
			out := x.run(func(ctx context.Context, tx pgx.Tx) error {
				defer c.armed.Store(true)
				if tc.fails {
					return errBoom
				}
				return effect(1)(ctx, tx)
			})
			if !out.Cancelled || out.Fenced || out.Booked != nil || !errors.Is(out.Err, errUnknown) || errors.Is(out.Err, errBoom) != tc.fails {
				t.Errorf("%+v", out)
			}
		})
	}
}

// Promise: what was sent may be carried out after its connection has been given up, and after a first look: it is waited for, or the handler would run again
// beside writes of its own that commit a moment later.
func TestWhatArrivesLateIsWaitedFor(t *testing.T) {
	c := &cutter{keep: true, late: true, asked: make(chan struct{}), arrived: make(chan struct{})}
	defer c.close()
	x := newTxRig(t, func(cfg *Config) { cfg.Pool.ConnConfig.DialFunc = c.dial })
	out := x.run(func(ctx context.Context, tx pgx.Tx) error {
		// Nobody can find the session to end it, as where a pooler is in between.
		_, err := tx.Exec(ctx, "set application_name = 'another'")
		defer c.armed.Store(true)
		return errors.Join(err, effect(1)(ctx, tx))
	})
	soon(x.rig, c.arrived, "arrival")
	if out.Booked == nil || out.Err != nil || out.Fenced || x.row() != "1 ready 0" || x.effects() != 1 {
		t.Errorf("%+v, row %s, %d effects", out, x.row(), x.effects())
	}
}

func TestNothingCanUndoACommitThatCouldNotBeLookedInto(t *testing.T) {
	c := &cutter{}
	x := newTxRig(t, func(cfg *Config) { cfg.Pool.ConnConfig.DialFunc = c.dial })
	ctx, cancel := context.WithCancel(t.Context())
	out := x.RunTx(ctx, x.work, func(ctx context.Context, tx pgx.Tx) error {
		defer c.armed.Store(true)
		err := effect(1)(ctx, tx)
		x.hot.Close() // the database cannot be reached any more
		cancel()      // and the claim's time is over
		return err
	}, completed(x.work.Record, x.consumer, 1))
	if !out.Fenced || out.Booked != nil {
		t.Errorf("%+v", out)
	}
	if x.effects() != 1 || x.row() != "1 ready 0" {
		t.Errorf("%d effects, row %s", x.effects(), x.row())
	}
}

// Promise: a handler whose connection is cut since its worker gave itself up has not failed: nothing is charged
// for it, also where the claim's loss is not known in the database yet.
func TestAHandlerThatAFencedWorkerCutsOffHasNotFailed(t *testing.T) {
	for what, handler := range map[string]func(context.Context, pgx.Tx) error{
		"in a statement": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select 1")
			return err
		},
		"before its outcome is booked": func(context.Context, pgx.Tx) error { return nil },
		"after it failed":              func(context.Context, pgx.Tx) error { return errors.New("its own") },
	} {
		t.Run(what, func(t *testing.T) {
			x := newTxRig(t)
			out := x.run(func(ctx context.Context, tx pgx.Tx) error {
				x.Fenced(x.me)
				return handler(ctx, tx)
			})
			if !out.Fenced || out.Booked != nil {
				t.Errorf("%+v", out)
			}
		})
	}
	x := newTxRig(t)
	x.Fenced(x.me + 1)
	if out := x.run(func(context.Context, pgx.Tx) error { return errors.New("its own") }); out.Fenced {
		t.Errorf("another incarnation was given up, before: %+v", out)
	}
}

// touchy is a tracer of the program's that panics at a point of the batch that ends a HandleTx transaction.
type touchy struct {
	at    string
	armed atomic.Bool
}

func (y *touchy) when(at string) {
	if y.at == at && y.armed.CompareAndSwap(true, false) {
		panic("tracer")
	}
}

func (*touchy) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*touchy) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (y *touchy) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	y.when("start")
	return ctx
}

func (y *touchy) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	if d.SQL == "commit" {
		y.when("commit")
	}
}
func (y *touchy) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) { y.when("end") }

// Promise: a panic of the program's own code that comes when the transaction may have committed is no panic of the handler, which would run again.
func TestAPanicWhileAnOutcomeIsBookedIsNotTheHandlers(t *testing.T) {
	for at, committed := range map[string]bool{"start": false, "commit": true, "end": true} {
		t.Run(at, func(t *testing.T) {
			y := &touchy{at: at}
			x := newTxRig(t, func(cfg *Config) { cfg.Pool.ConnConfig.Tracer = y })
			out := x.run(func(ctx context.Context, tx pgx.Tx) error {
				y.armed.Store(true)
				return effect(1)(ctx, tx)
			})
			if !out.Fenced || out.Booked != nil {
				t.Errorf("%+v", out)
			}
			if want := map[bool]string{true: "1 ready 0", false: "0 ready 0"}[committed]; x.row() != want {
				t.Errorf("row %s, want %s", x.row(), want)
			}
			if n := x.effects(); n != map[bool]int64{true: 1}[committed] {
				t.Errorf("%d effects", n)
			}
		})
	}
}
