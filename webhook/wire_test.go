package webhook

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/testdb"
)

// wants holds a delivery's outcome to what it should be; "" is success.
func wants(t *testing.T, name string, err error, code string) {
	t.Helper()
	verdict, _, _ := keyline.Judge(err)
	switch {
	case code == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case code != "" && (verdict != keyline.VerdictRetry || keyline.ErrorCode(err) != code):
		t.Errorf("%s: %v with the code %s: %v", name, verdict, keyline.ErrorCode(err), err)
	case strings.Contains(fmt.Sprint(err), "127.0.0.1") || strings.Contains(fmt.Sprint(err), "localhost") || strings.Contains(fmt.Sprint(err), "secret.example"):
		t.Errorf("%s tells: %v", name, err)
	}
}

// certificate is one that signs itself, and a pool that trusts it.
func certificate(t *testing.T, until time.Time, hosts ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "secret.example"}, NotBefore: until.Add(-1000 * time.Hour), NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// Promise: an endpoint whose certificate is not to be believed gets nothing, and the failure says what is wrong with it.
func TestACertificateThatIsNotToBeBelieved(t *testing.T) {
	now := clock.Real().Now()
	for _, tc := range []struct {
		name, code, says string
		until            time.Time
		host             string
		trusted          bool
	}{
		{"good", "", "", now.Add(time.Hour), "127.0.0.1", true},
		{"expired", CodeCertificate, "expired", now.Add(-time.Hour), "127.0.0.1", true},
		{"not yet", CodeCertificate, "not valid yet", now.Add(2000 * time.Hour), "127.0.0.1", true},
		{"another host's", CodeCertificate, "another host", now.Add(time.Hour), "secret.example", true},
		{"of nobody", CodeCertificate, "nobody who is trusted", now.Add(time.Hour), "127.0.0.1", false},
	} {
		pair, pool := certificate(t, tc.until, tc.host)
		arrived := 0
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived++ }))
		server.Config.ErrorLog, server.TLS = nil, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		server.StartTLS()
		s := open(t, Config{URL: server.URL})
		if !tc.trusted {
			pool = x509.NewCertPool()
		}
		s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		err := s.handle(t.Context(), delivery())
		wants(t, tc.name, err, tc.code)
		if err != nil && !strings.Contains(err.Error(), tc.says) || (arrived == 1) != (tc.code == "") {
			t.Errorf("%s: %v, and %d arrived", tc.name, err, arrived)
		}
		s.client.CloseIdleConnections()
		server.Close()
	}
}

// Promise: whatever an endpoint does to the connection, a delivery has an outcome, in time; its answer is the status.
func TestWhateverAnEndpointDoesToTheConnection(t *testing.T) {
	says := func(text string, then func(net.Conn)) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = io.WriteString(c, text)
			if then != nil {
				then(c)
			}
		}
	}
	// pour writes until the other side is gone.
	pour := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, text); err != nil {
					return
				}
			}
		}
	}
	hold := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	reset := func(c net.Conn) {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	}
	for name, tc := range map[string]struct {
		does func(net.Conn)
		code string
	}{
		"closes":                           {func(net.Conn) {}, CodeUnreachable},
		"resets":                           {reset, CodeUnreachable},
		"says nonsense":                    {says("BANANA\r\n\r\n", nil), CodeUnreachable},
		"says half":                        {says("HTTP/1.1 200 O", nil), CodeUnreachable},
		"never answers":                    {hold, CodeTimeout},
		"headers without end":              {says("HTTP/1.1 200 OK\r\n", pour("X: "+strings.Repeat("y", 1000)+"\r\n")), CodeUnreachable},
		"200, and no body that it said":    {says("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", hold), ""},
		"200, and a reset in the body":     {says("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx", reset), ""},
		"200, and a body without end":      {says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", pour("1000\r\n"+strings.Repeat("z", 4096)+"\r\n")), ""},
		"500, and no body that it said":    {says("HTTP/1.1 500 X\r\nContent-Length: 100\r\n\r\n", hold), "webhook_status_500"},
		"204 that has a body all the same": {says("HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 500 X\r\n\r\n", hold), ""},
		"two answers":                      {says("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n", hold), ""},
		"hints without an answer":          {says("HTTP/1.1 103 Early Hints\r\n\r\n", hold), CodeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			var lc net.ListenConfig
			listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for {
					c, err := listener.Accept()
					if err != nil {
						return
					}
					buffer := make([]byte, 64<<10)
					_, _ = c.Read(buffer)
					tc.does(c)
					_ = c.Close()
				}
			}()
			timeout := time.Minute // longer than anybody waits for what is not the answer
			if tc.code == CodeTimeout {
				timeout = 100 * time.Millisecond
			}
			s := open(t, Config{URL: "http://" + listener.Addr().String(), Timeout: timeout})
			done := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { done <- s.handle(ctx, delivery()) }()
			select {
			case err := <-done:
				wants(t, name, err, tc.code)
			case <-time.After(20 * time.Second):
				cancel()
				t.Errorf("it is waited for, and then %v", <-done)
			}
			s.client.CloseIdleConnections()
			_ = listener.Close()
			<-ended
		})
	}
	wants(t, "no name", open(t, Config{URL: "http://a..b/"}).handle(t.Context(), delivery()), CodeName)
}

// abyss is a listener whose connections it can have swallow all that goes through them, unnoticed by either side.
type abyss struct {
	net.Listener

	mu    sync.Mutex
	conns []*sinking
}

func (a *abyss) Accept() (net.Conn, error) {
	c, err := a.Listener.Accept()
	if err != nil {
		return nil, err
	}
	s := &sinking{Conn: c}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conns = append(a.conns, s)
	return s, nil
}

// swallow has the connections that there are swallow; it returns how many.
func (a *abyss) swallow() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.conns {
		c.sunk.Store(true)
	}
	return len(a.conns)
}

type sinking struct {
	net.Conn

	sunk atomic.Bool
}

func (s *sinking) Read(b []byte) (int, error) {
	for {
		if n, err := s.Conn.Read(b); err != nil || !s.sunk.Load() {
			return n, err
		}
	}
}

func (s *sinking) Write(b []byte) (int, error) {
	if s.sunk.Load() {
		return len(b), nil
	}
	return s.Conn.Write(b)
}

// Promise: a connection that packets vanish in is given up soon, not when the kernel does.
func TestAConnectionThatIsDeadIsNotUsedAgain(t *testing.T) {
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("HTTP/%d", version), func(t *testing.T) {
			got := make(chan int, 100)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.ProtoMajor }))
			server.EnableHTTP2 = version == 2
			sink := &abyss{Listener: server.Listener}
			server.Listener = sink
			server.StartTLS()
			t.Cleanup(server.Close)
			s := open(t, Config{URL: server.URL, Timeout: 300 * time.Millisecond})
			transport, _ := s.client.Transport.(*http.Transport)
			transport.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
			transport.TLSClientConfig.RootCAs.AddCert(server.Certificate())
			testdb.Eventually(t, func() bool { return s.handle(t.Context(), delivery()) == nil }, "the endpoint to answer")
			if v := <-got; v != version {
				t.Fatalf("HTTP/%d was spoken", v)
			}
			if n := sink.swallow(); n == 0 {
				t.Fatal("there is no connection")
			}
			for range 40 {
				if s.handle(t.Context(), delivery()) == nil {
					return
				}
			}
			t.Error("40 tries in vain")
		})
	}
}
