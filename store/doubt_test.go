package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// deafener is a dialer whose connections can be cut when the reply to one
// statement comes: it was carried out, and nobody hears of it.
type deafener struct {
	statement atomic.Pointer[[]byte] // as its execution names it; nil: none
	cuts      atomic.Int64
}

// next makes the next execution of a prepared statement the one whose reply is lost.
func (d *deafener) next(sql string) {
	// A batch binds what pgx has prepared under a name that it makes of the text.
	sum := sha256.Sum256([]byte(sql))
	bind := []byte("\x00stmtcache_" + hex.EncodeToString(sum[:24]) + "\x00")
	d.statement.Store(&bind)
}

func (d *deafener) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &deaf{Conn: conn, by: d}, err
}

type deaf struct {
	net.Conn
	by  *deafener
	cut atomic.Bool
}

func (c *deaf) Write(b []byte) (int, error) {
	if sql := c.by.statement.Load(); sql != nil && b[0] == 'B' && bytes.Contains(b, *sql) && c.by.statement.CompareAndSwap(sql, nil) {
		c.cut.Store(true)
		c.by.cuts.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *deaf) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut.Load() {
		// The replies to a batch come together, after its commit.
		return 0, errCut
	}
	return n, err
}

// newDeafRig has a store whose connections can be cut.
func newDeafRig(t *testing.T) (*rig, *deafener) {
	t.Helper()
	d := &deafener{}
	r := newRig(t, func(c *Config) { c.Pool.ConnConfig.DialFunc = d.dial })
	return r, d
}

func (d *deafener) done(r *rig) {
	r.Helper()
	if n := d.cuts.Load(); n != 1 {
		r.Fatalf("%d connections were cut", n)
	}
}

func TestAFlushWhoseReplyIsLostIsWrittenAndCountedOnce(t *testing.T) {
	r, d := newDeafRig(t)
	c := r.register(definition("c"))
	l := r.load(r.claimOne(r.append("r", "t", "t")))
	f := everything(l, c)
	d.next(r.q("flush"))
	if res := r.flush1(f); res.Status != core.FlushKept {
		t.Errorf("%+v", res)
	}
	d.done(r)
	if n := r.written(); n != 6 {
		t.Errorf("%d rows", n)
	}
	if n := r.completed(); n != 3 {
		t.Errorf("3 completions are counted as %d", n)
	}
	// The lane goes on, and what comes next counts.
	if res := r.flush1(f); res.Status != core.FlushKept {
		t.Errorf("the next one: %+v", res)
	}
	if n := r.completed(); n != 6 {
		t.Errorf("6 completions are counted as %d", n)
	}
}

// Repeated, a settle that was carried out finds no claim any more, while the
// record beside it in the batch goes on: neither is written or counted twice.
func TestABatchWhoseReplyIsLostIsCountedOnceThoughPartOfItHasEnded(t *testing.T) {
	r, d := newDeafRig(t)
	c := r.register(definition("c"))
	ids := r.appendTo("r", 3)
	settles, keeps, releases := counted(r.claimOne(ids[0]), c), counted(r.claimOne(ids[1]), c), counted(r.claimOne(ids[2]), c)
	keeps.Then, releases.Then = core.Keep, core.Release
	batch := []pending{}
	epoch := r.epoch()
	results := make(chan core.FlushResult, 3)
	for _, f := range []core.Flush{settles, keeps, releases} {
		batch = append(batch, pending{record: f.Record, flush: &f, epoch: epoch, done: func(res core.FlushResult) { results <- res }})
	}
	d.next(r.q("flush"))
	r.Store.commit.lane.add(batch...) // at once, so that they are one batch
	got := map[int64]core.FlushStatus{}
	for range batch {
		res := soon(r, results, "a flush")
		got[res.Record] = res.Status
	}
	d.done(r)
	// What has ended cannot be told from what was lost, so its holder stops; that is safe.
	if got[ids[0]] != core.FlushFenced || got[ids[1]] != core.FlushKept || got[ids[2]] != core.FlushFenced {
		t.Errorf("answers: %v", got)
	}
	if b := r.box(ids[0]); b.exists {
		t.Errorf("not settled: %+v", b)
	}
	if b := r.box(ids[1]); b.claimedBy != r.me || b.cursor != 1 {
		t.Errorf("not kept: %+v", b)
	}
	if b := r.box(ids[2]); b.claimedBy != 0 || !b.due {
		t.Errorf("not released: %+v", b)
	}
	if n := r.completed(); n != 3 {
		t.Errorf("3 deliveries are counted as %d", n)
	}
}

// The claim is in the database, and nothing in the process knows of it.
func TestAClaimWhoseReplyIsLostIsFreedByTheOrphanSearch(t *testing.T) {
	r, d := newDeafRig(t)
	id := r.append("r")
	d.next(r.q("claim"))
	claims, err := r.Claim(t.Context(), core.ClaimRequest{Worker: r.me, Limit: 10, Unbounded: true})
	if !errors.Is(err, keylinetype.ErrUnavailable) || len(claims) != 0 {
		t.Fatalf("%v, %v", claims, err)
	}
	d.done(r)
	if b := r.box(id); b.claimedBy != r.me {
		t.Fatalf("not claimed: %+v", b)
	}
	if got := r.claims(r.me, 10); len(got) != 0 {
		t.Errorf("claimed twice: %v", got)
	}
	r.age()
	if n, err := r.HandBackOrphans(t.Context(), r.me, nil); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if got := r.claims(r.me, 10); len(got) != 1 || got[0].Crashes != 0 {
		t.Errorf("then claimed: %+v", got)
	}
}
