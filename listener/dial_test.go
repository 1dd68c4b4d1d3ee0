package listener

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/lib/pq"
)

// What a connection string means is pgx's to say: lib/pq must be led to the
// same server, as the same user, in the same order of hosts.
func TestTargetIsWhatPgxMakesOfTheConnectionString(t *testing.T) {
	for url, want := range map[string]struct {
		hosts    []string
		user     string
		password string
		database string
	}{
		"postgres://u:p%27%5C%20w@h:5433/d?sslmode=disable&pool_max_conns=7&default_query_exec_mode=exec": {
			hosts: []string{"tcp h:5433"}, user: "u", password: `p'\ w`, database: "d",
		},
		"host=/run/pg port=5434 user=u dbname='d b' password='' search_path=x statement_timeout=5": {
			hosts: []string{"unix /run/pg/.s.PGSQL.5434"}, user: "u", database: "d b",
		},
		"postgres://u@a:1,b:2/d?sslmode=prefer": {
			hosts: []string{"tcp a:1 tls", "tcp a:1", "tcp b:2 tls", "tcp b:2"}, user: "u", database: "d",
		},
		"postgres://u@a:1/d?sslmode=verify-full": {
			hosts: []string{"tcp a:1 tls"}, user: "u", database: "d",
		},
	} {
		target, err := newTarget(url, "an app's name")
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		var hosts []string
		for _, h := range target.hosts {
			s := h.network + " " + h.address
			if h.tls != nil {
				s += " tls"
			}
			hosts = append(hosts, s)
		}
		if diff := cmp.Diff(want.hosts, hosts); diff != "" {
			t.Errorf("%s: hosts (-want +got):\n%s", url, diff)
		}
		got, err := pq.NewConfig(target.dsn)
		if err != nil {
			t.Errorf("%s: lib/pq does not take %q: %v", url, target.dsn, err)
			continue
		}
		if got.User != want.user || got.Password != want.password || got.Database != want.database ||
			got.ApplicationName != "an app's name" || got.SSLMode != pq.SSLModeDisable || len(got.Runtime) != 0 {
			t.Errorf("%s: lib/pq reads %+v", url, got)
		}
	}
}

func TestTargetRefusesWhatPgxRefuses(t *testing.T) {
	if _, err := newTarget("postgres://h:notaport/d", "x"); err == nil || !strings.Contains(err.Error(), "ListenURL") {
		t.Errorf("error %v does not name the field", err)
	}
}

// A host that failed is not the first to be tried the next time; one that was
// good is.
func TestDialerGoesOnToTheNextHost(t *testing.T) {
	accept := func() (host, func()) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return host{network: "tcp", address: l.Addr().String()}, func() { l.Close() }
	}
	dead, closeDead := accept()
	closeDead()
	good, closeGood := accept()
	defer closeGood()
	target, err := newTarget("host=x", "x")
	if err != nil {
		t.Fatal(err)
	}
	target.hosts = []host{dead, good}
	d := newDialer(target)
	defer d.stop()
	if _, err := d.Dial("", ""); err == nil {
		t.Fatal("connected to a closed port")
	}
	for range 2 {
		c, err := d.Dial("", "")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.RemoteAddr().String(); got != good.address {
			t.Fatalf("connected to %s, want %s", got, good.address)
		}
		d.established()
		d.kill()
	}
	d.skip() // the server refused LISTEN
	if _, err := d.Dial("", ""); err == nil {
		t.Fatal("kept to a host that was to be skipped")
	}
	d.stop()
	if _, err := d.Dial("", ""); err == nil {
		t.Fatal("connected after the stop")
	}
}

func TestStartTLSAsksFirst(t *testing.T) {
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	for _, answer := range []byte("SN") {
		client, server := net.Pipe()
		done := make(chan error, 1)
		go func() {
			defer server.Close()
			var question [8]byte
			if _, err := io.ReadFull(server, question[:]); err != nil {
				done <- err
				return
			}
			if _, err := server.Write([]byte{answer}); err != nil || answer == 'N' {
				done <- err
				return
			}
			done <- tls.Server(server, &tls.Config{Certificates: web.TLS.Certificates}).Handshake()
		}()
		conn, err := startTLS(t.Context(), client, &tls.Config{RootCAs: roots, ServerName: "example.com"})
		if (err == nil) != (answer == 'S') {
			t.Errorf("answered %q: error %v", answer, err)
		}
		if err := <-done; err != nil {
			t.Errorf("answered %q: server: %v", answer, err)
		}
		conn.Close()
	}
}

// Promise: a server without TLS is connected to at once where the connection string may do without, and nothing is logged about it.
func TestAServerWithoutTLSIsNoFailureWhereNoneIsWanted(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				var question [8]byte
				if _, err := io.ReadFull(conn, question[:]); err == nil {
					_, _ = conn.Write([]byte("N"))
				}
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	for mode, connects := range map[string]bool{"prefer": true, "require": false} {
		target, err := newTarget("postgres://u@"+server.Addr().String()+"/d?sslmode="+mode, "x")
		if err != nil {
			t.Fatal(err)
		}
		d := newDialer(target)
		conn, err := d.Dial("", "")
		if (err == nil) != connects {
			t.Errorf("%s: %v", mode, err)
		}
		if conn != nil {
			_ = conn.Close()
		}
	}
}
