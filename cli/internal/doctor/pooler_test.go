package doctor

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/keylinehq/keyline/internal/testdb"
)

// startPooler is a transaction pooler in little, for statements of the simple
// protocol, with this many connections to the server.
func startPooler(t *testing.T, db *testdb.DB, size int) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	servers := make(chan *pgproto3.Frontend, size)
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close() // what it says of its end is of no use
		wg.Wait()
	})
	for range size {
		conn, err := pgconn.Connect(t.Context(), db.URL)
		if err != nil {
			t.Fatal(err)
		}
		h, err := conn.Hijack()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Conn.Close() })
		servers <- h.Frontend
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = serve(c, servers) // ends with the client
			})
		}
	})
	cfg, err := pgconn.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", cfg.User, l.Addr(), db.Name)
}

func serve(c net.Conn, servers chan *pgproto3.Frontend) error {
	client := pgproto3.NewBackend(c, c)
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return err
	}
	client.Send(&pgproto3.AuthenticationOk{})
	client.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	client.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	client.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for {
		if err := client.Flush(); err != nil {
			return err
		}
		m, err := client.Receive()
		if err != nil {
			return err
		}
		if _, ok := m.(*pgproto3.Terminate); ok {
			return nil
		}
		if err := answer(client, m, servers); err != nil {
			return err
		}
	}
}

// answer has one statement answered by whichever server is free.
func answer(client *pgproto3.Backend, m pgproto3.FrontendMessage, servers chan *pgproto3.Frontend) error {
	server := <-servers
	defer func() { servers <- server }()
	server.Send(m)
	if err := server.Flush(); err != nil {
		return err
	}
	for {
		a, err := server.Receive()
		if err != nil {
			return err
		}
		client.Send(a)
		if err := client.Flush(); err != nil { // a belongs to the server until it is sent
			return err
		}
		if _, ok := a.(*pgproto3.ReadyForQuery); ok {
			return nil
		}
	}
}

func TestATransactionPoolerIsFoundOutByProbing(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			p := healthy(t)
			url := startPooler(t, p.db, size)
			p.opts.ListenURL = url
			p.shows("pooler", Warn, "the listen URL goes through a transaction pooler")

			pooled := healthy(t)
			pooled.opts.Pool = admitted(t, p.db).opts.Pool
			cfg, err := pgconn.ParseConfig(url)
			if err != nil {
				t.Fatal(err)
			}
			pooled.opts.Pool.ConnConfig.Config = *cfg
			pooled.shows("pooler", Warn, "reached through a transaction pooler")
			pooled.opts.ListenURL = p.db.URL
			pooled.shows("pooler", OK, "a transaction pooler, and a direct connection for listening")
		})
	}
}

func TestADirectConnectionIsSeenAsOne(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	p.shows("pooler", OK, "a direct connection")
	p.opts.ListenURL = "postgres://nobody@" + t.Name() + ".invalid/x"
	p.shows("pooler", Fail, "does not connect")
}
