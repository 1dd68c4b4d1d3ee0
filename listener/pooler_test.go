//go:build unix

package listener

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/keylinehq/keyline/internal/freeport"
	"github.com/keylinehq/keyline/internal/testdb"
)

// Behind a transaction pooler LISTEN succeeds and hears nothing, and a session
// lock would stay on a connection that others use. The worker must find out,
// say so once, take no lock, and poll.
func TestTransactionPoolerIsFoundOutAndPolled(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, *testdb.DB) string{
		"twin":      startPoolerTwin,
		"PgBouncer": startPgBouncer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			n := startNode(t, db, nil)
			n.sentinel() // a direct one beside it: it is the one to be woken

			pooled := startNode(t, db, func(c *Config) {
				c.ListenURL = start(t, db)
				c.Fallback = 50 * time.Millisecond
				c.ProbeTimeout, c.Reprobe = 300*time.Millisecond, 100*time.Millisecond
			})
			testdb.Eventually(t, func() bool { return pooled.Mode() == Polling }, "the pooler is not found out")
			if s := pooled.Status(); !strings.Contains(s.Reason, "transaction pooler") {
				t.Errorf("reason %q does not name the cause", s.Reason)
			}
			for range 20 { // through several probes
				pooled.woken(Fallback)
				if s := pooled.Status(); s.State != Asleep || s.Mode != Polling {
					t.Fatalf("behind a pooler: %+v", s)
				}
			}
			if got := pooled.log.count("notifications do not arrive"); got != 1 {
				t.Errorf("said %d times, want once", got)
			}
			record := appendEvent(t, db.Pool(), "activity:1")
			if w := n.woken(Notified); w.Records[0] != record {
				t.Errorf("woken with %+v, want record %d", w, record)
			}
		})
	}
}

// A probe that comes late still counts: a server that was slow for a moment
// must not make a worker poll for ever.
func TestSlowNotificationsAreBelievedWhenTheyCome(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	release := make(chan struct{})
	var once sync.Once
	n := startNode(t, db, func(c *Config) {
		notify := c.Notify
		c.Notify = func(ctx context.Context, payload string) error {
			// Says that it was sent, and sends it much later.
			go once.Do(func() {
				<-release
				if err := notify(context.WithoutCancel(ctx), payload); err != nil {
					t.Error(err)
				}
			})
			return nil
		}
		c.Fallback = 50 * time.Millisecond
		c.ProbeTimeout, c.Reprobe = 50*time.Millisecond, hour
	})
	testdb.Eventually(t, func() bool { return n.Mode() == Polling }, "the silence is not noticed")
	n.woken(Fallback)
	close(release)
	n.woken(Reconnected)
	n.becomes(Sentinel)
	if got := n.log.count("notifications arrive again"); got != 1 {
		t.Errorf("said %d times that they arrive again, want once", got)
	}
}

// startPoolerTwin is a transaction pooler in little: a client has a server
// connection only from a statement to the end of its transaction.
func startPoolerTwin(t *testing.T, db *testdb.DB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const size = 2
	p := &poolerTwin{db: db, servers: make(chan *pgproto3.Frontend, size)}
	for range size {
		p.servers <- p.connect(t)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = p.serve(c) // ends with the client
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.closeAll()
		wg.Wait()
	})
	user := poolConfig(t, db.URL).ConnConfig.User
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", user, l.Addr(), db.Name)
}

type poolerTwin struct {
	db      *testdb.DB
	servers chan *pgproto3.Frontend

	mu    sync.Mutex
	conns []net.Conn
}

func (p *poolerTwin) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
}

func (p *poolerTwin) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

func (p *poolerTwin) connect(t *testing.T) *pgproto3.Frontend {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), p.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	h, err := conn.Hijack()
	if err != nil {
		t.Fatal(err)
	}
	p.keep(h.Conn)
	return h.Frontend
}

func (p *poolerTwin) serve(c net.Conn) error {
	p.keep(c)
	client := pgproto3.NewBackend(c, c)
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return err
	}
	client.Send(&pgproto3.AuthenticationOk{})
	client.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := client.Flush(); err != nil {
		return err
	}
	for {
		m, err := client.Receive()
		if err != nil {
			return err
		}
		if _, ok := m.(*pgproto3.Terminate); ok {
			return nil
		}
		if err := p.transaction(client, m); err != nil {
			return err
		}
	}
}

// transaction links the client to a server until that is idle again.
func (p *poolerTwin) transaction(client *pgproto3.Backend, m pgproto3.FrontendMessage) error {
	server := <-p.servers
	defer func() { p.servers <- server }()
	for {
		server.Send(m)
		if err := server.Flush(); err != nil {
			return err
		}
		for status := byte(0); status == 0; {
			answer, err := server.Receive()
			if err != nil {
				return err
			}
			client.Send(answer)
			if ready, ok := answer.(*pgproto3.ReadyForQuery); ok {
				status = ready.TxStatus
			}
			if err := client.Flush(); err != nil {
				return err
			}
			if status == 'I' {
				return nil
			}
		}
		var err error
		if m, err = client.Receive(); err != nil {
			return err
		}
	}
}

// startPgBouncer starts the real one, where it is installed.
func startPgBouncer(t *testing.T, db *testdb.DB) string {
	t.Helper()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		if bin, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Skip("no pgbouncer here; the twin stands for it")
		}
	}
	cfg := poolConfig(t, db.URL).ConnConfig
	port, err := freeport.Choose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	users := filepath.Join(dir, "users")
	ini := filepath.Join(dir, "pgbouncer.ini")
	password := ""
	if cfg.Password != "" {
		password = " password=" + cfg.Password
	}
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(users, fmt.Sprintf("%q %q\n", cfg.User, cfg.Password))
	write(ini, fmt.Sprintf(`[databases]
* = host=%s port=%d user=%s%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
auth_file = %s
pool_mode = transaction
default_pool_size = 2
`, cfg.Host, cfg.Port, cfg.User, password, port, users))
	cmd := exec.Command(bin, ini)
	cmd.Dir = "/"
	if os.Getuid() == 0 { // it refuses root
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: ownerOf(t, cfg.Host)}
		for d := dir; len(d) > len(os.TempDir()); d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	out := &logBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // says that it was killed
		if t.Failed() {
			t.Logf("pgbouncer: %s", out.buf.Bytes())
		}
	})
	address := fmt.Sprintf("127.0.0.1:%d", port)
	testdb.Eventually(t, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, "pgbouncer does not answer")
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", cfg.User, address, db.Name)
}

// ownerOf is whoever may enter the server's socket directory.
func ownerOf(t *testing.T, host string) *syscall.Credential {
	t.Helper()
	if !filepath.IsAbs(host) {
		return &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	info, err := os.Stat(host)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	return &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
}
