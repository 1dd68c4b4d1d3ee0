package store

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/keylinehq/keyline/internal/clock"
)

// silence is how long the server may say nothing at all in answer to a
// statement of the runtime's own, which take milliseconds. A network that drops packets without
// closing anything would otherwise hold a group commit, and with it every
// record of its lane, for as long as the kernel goes on sending: a quarter of an hour, or for
// ever where a proxy in between has accepted the bytes.
const silence = 20 * time.Second

// sockets are the connections of a store's pools, so that all of them can be
// given up at once.
type sockets struct {
	clock clock.Clock

	mu   sync.Mutex
	open map[*socket]struct{}
}

// dial wraps a pool's dial function.
func (s *sockets) dial(next pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &socket{Conn: conn, all: s}
		c.heard.Store(int64(s.clock.Mono()))
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open == nil {
			s.open = map[*socket]struct{}{}
		}
		s.open[c] = struct{}{}
		return c, nil
	}
}

// cut closes all connections, without a farewell. Calls under way fail as they
// do when the server closes them; what became of those is found out like after any
// lost answer.
func (s *sockets) cut() {
	s.mu.Lock()
	open := make([]*socket, 0, len(s.open))
	for c := range s.open {
		open = append(open, c)
	}
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // it is given up, whatever it says
	}
}

// silent gives up a connection that has said nothing since then, and with it
// the idle ones that nobody has heard of since: what has swallowed one has most likely swallowed
// them too, and each would cost its next user as long a wait.
func (s *sockets) silent(c *socket, since time.Duration) {
	gone := []*socket{c}
	s.mu.Lock()
	for other := range s.open {
		if other != c && other.quiet.Load() && !other.patient.Load() && time.Duration(other.heard.Load()) < since {
			gone = append(gone, other)
		}
	}
	s.mu.Unlock()
	for _, c := range gone {
		_ = c.Close() // it is given up, whatever it says
	}
}

// socket is one connection.
type socket struct {
	net.Conn
	all     *sockets
	heard   atomic.Int64 // when something last came, monotonic
	quiet   atomic.Bool  // nobody waits for anything to come
	patient atomic.Bool  // a handler's statements run here: they may take as long as they like
}

// Read gives the connection up after too long a silence. Nobody reads from an
// idle one.
func (c *socket) Read(b []byte) (int, error) {
	c.quiet.Store(false)
	defer c.quiet.Store(true)
	if !c.patient.Load() {
		begun := c.all.clock.Mono()
		t := c.all.clock.AfterFunc(silence, func() { c.all.silent(c, begun) })
		defer t.Stop()
	}
	n, err := c.Conn.Read(b)
	c.heard.Store(int64(c.all.clock.Mono()))
	return n, err
}

// patience says whether the server may be silent on a connection.
func patience(conn *pgx.Conn, yes bool) {
	under := conn.PgConn().Conn()
	if t, ok := under.(interface{ NetConn() net.Conn }); ok { // TLS
		under = t.NetConn()
	}
	if c, ok := under.(*socket); ok {
		c.patient.Store(yes)
	}
}

func (c *socket) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// Fenced is called when a worker of this store gives itself up. It does so
// because it has not been able to reach the database in time, so its
// connections are not to be trusted: all are closed, and replaced at need. What they may
// have left on the server (a transaction that holds a record, a session lock) is ended with the
// next Join. It does not block.
func (s *Store) Fenced(worker int64) {
	s.fenced.Store(worker)
	s.endSessions.Store(true)
	s.sockets.cut()
}
