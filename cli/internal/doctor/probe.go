package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// mode is what lies between a client and its server.
type mode string

const (
	direct    mode = "a direct connection"
	perClient mode = "a pooler that keeps one session for each client"
	shared    mode = "a transaction pooler"
)

// probes is who of two clients asks who serves it, one after the other. Not in
// strict turns: a pooler that gives two sessions out in turns would serve each by its own.
var probes = [...]int{0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1}

// probe finds the mode out: two clients ask which process serves them. Behind a
// transaction pooler one client is served by several, or both by the same.
func (v *visit) probe(ctx context.Context, cfg *pgx.ConnConfig) (m mode, err error) {
	var clients [2]*pgx.Conn
	for i := range clients {
		c, err := v.connect(ctx, cfg)
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
		clients[i] = c
	}
	var by [2]map[uint32]bool
	for i := range by {
		by[i] = map[uint32]bool{}
	}
	m = direct
	for _, i := range probes {
		var pid uint32
		if err := clients[i].QueryRow(ctx, v.q("pid")).Scan(&pid); err != nil {
			return "", err
		}
		by[i][pid] = true
		if pid != clients[i].PgConn().PID() { // which a pooler makes up
			m = perClient
		}
	}
	for pid := range by[0] {
		if len(by[0]) > 1 || by[1][pid] {
			m = shared
		}
	}
	return m, nil
}

func (v *visit) pooler(ctx context.Context) (finding, error) {
	at, err := v.probe(ctx, v.opts.Pool.ConnConfig)
	if err != nil {
		return finding{}, err
	}
	if v.opts.ListenURL == "" {
		if at == shared {
			return finding{Warn, "the database is reached through a transaction pooler: workers cannot be woken through one, and poll",
				"give workers a direct connection for listening, --listen-url"}, nil
		}
		return fine("%s: workers can listen", at), nil
	}
	cfg, err := pgxpool.ParseConfig(v.opts.ListenURL)
	if err != nil {
		return finding{Fail, "the listen URL is wrong: " + err.Error(), "correct --listen-url"}, nil
	}
	listen, err := v.probe(ctx, cfg.ConnConfig)
	switch {
	case err != nil:
		return finding{Fail, "the listen URL does not connect: " + err.Error(), "correct --listen-url"}, nil
	case listen == shared:
		return finding{Warn, "the listen URL goes through a transaction pooler: workers cannot be woken through one, and poll",
			"let --listen-url name the server itself"}, nil
	}
	return fine("%s, and %s for listening", at, listen), nil
}

// dialTimeout is how long a collector may take to accept a connection.
const dialTimeout = 2 * time.Second

func (v *visit) otlp(ctx context.Context) (finding, error) {
	if len(v.opts.OTLP) == 0 {
		return fine("no endpoint is set: traces and metrics go nowhere"), nil
	}
	var reached []string
	for _, signal := range slices.Sorted(maps.Keys(v.opts.OTLP)) {
		address, err := endpoint(v.opts.OTLP[signal])
		if err != nil {
			return finding{Fail, fmt.Sprintf("the endpoint of %s is wrong: %v", signal, err), "set OTEL_EXPORTER_OTLP_ENDPOINT to a URL such as http://localhost:4318"}, nil
		}
		d := net.Dialer{Timeout: dialTimeout}
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return finding{Warn, fmt.Sprintf("the endpoint of %s is not reached: %v", signal, err), "start the collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT"}, nil
		}
		if err := c.Close(); err != nil {
			return finding{}, err
		}
		reached = append(reached, signal+" at "+address)
	}
	return fine("accepts connections: %s", strings.Join(reached, ", ")), nil
}

// endpoint is the address of an OTLP endpoint.
func endpoint(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", errors.New("it is no URL") // without its text: it may hold a password
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "", fmt.Errorf("%q is no http or https URL", u.Redacted())
	case u.Port() != "":
		return u.Host, nil
	case u.Scheme == "https":
		return net.JoinHostPort(u.Hostname(), "443"), nil
	}
	return net.JoinHostPort(u.Hostname(), "80"), nil
}
