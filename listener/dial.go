package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/keylinehq/keyline/internal/dsn"
)

// dialTimeout bounds one connection attempt, handshake included.
const dialTimeout = 10 * time.Second

var (
	errStopped    = errors.New("listener stopped")
	errRefusesTLS = errors.New("the server refused TLS")
)

// target is where lib/pq's listener connects to. The settings are read by pgx,
// so that LISTEN reaches the server in the way the rest of Keyline does
// (sslmode, password files, several hosts): the two drivers differ in defaults
// and in the parameters that they know. lib/pq gets a plain connection string
// and a dialer that has done the rest.
type target struct {
	dsn   string
	hosts []host
	dial  pgconn.DialFunc
}

type host struct {
	network, address string
	tls              *tls.Config
}

// Connection is how to connect, as pgx has it.
type Connection = pgx.ConnConfig

func (c *Config) target() (target, error) {
	if c.Connection != nil {
		return targetOf(c.Connection, c.ApplicationName), nil
	}
	return newTarget(c.ListenURL, c.ApplicationName)
}

func newTarget(url, applicationName string) (target, error) {
	// The pool's parser, to take its own parameters out of the string.
	pool, err := dsn.Pool(url)
	if err != nil {
		return target{}, fmt.Errorf("ListenURL: %w", err)
	}
	return targetOf(pool.ConnConfig, applicationName), nil
}

func targetOf(c *Connection, applicationName string) target {
	t := target{dial: c.DialFunc}
	add := func(name string, port uint16, conf *tls.Config) {
		network, address := pgconn.NetworkAddress(name, port)
		t.hosts = append(t.hosts, host{network, address, conf})
	}
	add(c.Host, c.Port, c.TLSConfig)
	for _, f := range c.Fallbacks {
		add(f.Host, f.Port, f.TLSConfig)
	}
	var dsn strings.Builder
	put := func(key, value string) {
		value = strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value)
		fmt.Fprintf(&dsn, "%s='%s' ", key, value)
	}
	put("host", c.Host)
	put("port", fmt.Sprint(c.Port))
	put("dbname", c.Database)
	put("user", c.User)
	put("password", c.Password)
	put("sslmode", "disable") // the dialer's business
	put("connect_timeout", "0")
	put("application_name", applicationName)
	// Of the runtime parameters only this one can matter to a session that
	// does nothing but LISTEN (some proxies route by it), and poolers refuse
	// start-up parameters that they do not know.
	if options := c.RuntimeParams["options"]; options != "" {
		put("options", options)
	}
	t.dsn = dsn.String()
	return t
}

// dialer connects for lib/pq, and keeps hold of the connection: lib/pq's
// listener has no deadlines, and its Close waits for a lock that is held while
// it connects or pings; closing the connection beneath it gets it out of there.
type dialer struct {
	target target
	// lib/pq hands no context to its dialer, so this one has its own.
	ctx  context.Context
	stop context.CancelFunc

	mu   sync.Mutex
	conn net.Conn
	next int // the host to try first: the last one that was good, else the next
}

func newDialer(t target) *dialer {
	ctx, stop := context.WithCancel(context.Background())
	return &dialer{target: t, ctx: ctx, stop: stop}
}

// Dial connects to the next host; lib/pq's idea of the address is ours.
func (d *dialer) Dial(_, _ string) (net.Conn, error) {
	conn, plain, err := d.try()
	if plain {
		// A server without TLS is nothing to report where it may do without (sslmode=prefer, the default): that is the next one.
		conn, _, err = d.try()
	}
	return conn, err
}

// try connects to the next host. plain says that it refused TLS, and that the one behind it is the same without.
func (d *dialer) try() (conn net.Conn, plain bool, err error) {
	ctx, cancel := context.WithTimeout(d.ctx, dialTimeout)
	defer cancel()
	d.mu.Lock()
	h := d.target.hosts[d.next%len(d.target.hosts)]
	d.next++ // for the case that this one is no good; established takes it back
	behind := d.target.hosts[d.next%len(d.target.hosts)]
	d.mu.Unlock()
	conn, err = d.connect(ctx, h)
	return conn, errors.Is(err, errRefusesTLS) && behind.tls == nil && behind.network == h.network && behind.address == h.address, err
}

func (d *dialer) connect(ctx context.Context, h host) (net.Conn, error) {
	conn, err := d.target.dial(ctx, h.network, h.address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		// Covers lib/pq's part of the handshake too; lifted by established.
		err = conn.SetDeadline(deadline)
	}
	if err == nil && h.tls != nil {
		conn, err = startTLS(ctx, conn, h.tls)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return nil, errors.Join(errStopped, conn.Close())
	}
	d.conn = conn
	return conn, nil
}

// DialTimeout is Dial, which has its own limit.
func (d *dialer) DialTimeout(network, address string, _ time.Duration) (net.Conn, error) {
	return d.Dial(network, address)
}

// established ends the handshake's deadline and keeps to this host.
func (d *dialer) established() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next--
	if d.conn == nil {
		return
	}
	if err := d.conn.SetDeadline(time.Time{}); err != nil {
		return // closed already, as lib/pq will see
	}
}

// skip makes the next connection go to the next host.
func (d *dialer) skip() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
}

// kill closes the connection beneath lib/pq, which then makes a new one.
func (d *dialer) kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn == nil {
		return
	}
	if err := d.conn.Close(); err != nil {
		return // closed already
	}
}

// startTLS asks the server for TLS, as the protocol has it.
func startTLS(ctx context.Context, conn net.Conn, conf *tls.Config) (net.Conn, error) {
	if conf.NextProtos == nil { // else: direct TLS, without a question
		if _, err := conn.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47}); err != nil {
			return conn, err
		}
		var answer [1]byte
		if _, err := io.ReadFull(conn, answer[:]); err != nil {
			return conn, err
		}
		if answer[0] != 'S' {
			return conn, errRefusesTLS
		}
	}
	secure := tls.Client(conn, conf)
	return secure, secure.HandshakeContext(ctx)
}
