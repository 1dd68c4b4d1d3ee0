package keyline

import (
	"context"
	"database/sql"
	"slices"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/keylinehq/keyline/store/clientsql"
)

// DefaultPayloadLimit is how many bytes of JSON an event's payload may have.
const DefaultPayloadLimit = 1 << 20

// PGX is what the client needs of pgx: a pgx.Tx, *pgx.Conn, *pgxpool.Pool or
// *pgxpool.Conn. Give it the transaction that the event belongs to; with
// anything else the append is a transaction of its own.
type PGX interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// SQL is what the client needs of database/sql: a *sql.Tx, *sql.Conn or *sql.DB,
// with any Postgres driver. As with PGX, give it the transaction.
type SQL interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// ClientConfig is how a Client appends. The zero value is a good one.
type ClientConfig struct {
	// Schema is the name of Keyline's schema. Default "keyline".
	Schema string
	// Tenant pins the client to one tenant: events without a tenant are its
	// own, and those of any other tenant are refused (CodeTenantMismatch), as
	// is reading their records. Default nil: any tenant.
	Tenant *string
	// EventTypes are the types whose payloads are validated before anything is
	// sent. RegisterEventTypes makes them known to the database.
	EventTypes []EventType
	// Strict refuses (CodeUnknownEventType) what is not in EventTypes. Default
	// false. RegisterEventTypes gives the database the same switch.
	Strict bool
	// PayloadLimit is how many bytes of JSON a payload may have. Default 1 MiB.
	// The database has a limit of its own, of 1 MiB too, over the text that it
	// makes of the payload (meta.payload_limit).
	PayloadLimit int
	// TracerProvider makes the append spans. Default: OpenTelemetry's global one.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the counters. Default: OpenTelemetry's global one.
	MeterProvider metric.MeterProvider
}

// Client appends events and reads streams. It holds no connection: each call is
// given one, or a transaction. It is safe for concurrent use.
type Client struct {
	check checker
	types []EventType
	sql   *clientsql.Statements
	watch *appendTelemetry
}

// NewClient makes a Client; the error says which field is wrong.
func NewClient(cfg ClientConfig) (*Client, error) {
	statements, err := clientsql.For(cfg.Schema)
	if err != nil {
		return nil, wrong("ClientConfig.Schema", "%v", err)
	}
	check, err := newChecker(cfg)
	if err != nil {
		return nil, err
	}
	watch, err := newAppendTelemetry(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{check: check, types: slices.Clone(cfg.EventTypes), sql: statements, watch: watch}, nil
}

// Publisher is what a program that appends depends on, so that it can be given
// a Client, or an InProcess in tests.
type Publisher interface {
	Append(context.Context, PGX, NewEvent) (Appended, error)
	AppendMany(context.Context, PGX, []NewEvent) ([]Appended, error)
}

var (
	_ Publisher = (*Client)(nil)
	_ Publisher = (*InProcess)(nil)
)

// query runs one statement and hands each row's scan to each.
type query func(ctx context.Context, text string, args []any, each func(scan func(...any) error) error) error

func pgxQuery(db PGX) query {
	return func(ctx context.Context, text string, args []any, each func(scan func(...any) error) error) error {
		rows, err := db.Query(ctx, text, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := each(rows.Scan); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

func sqlQuery(db SQL) query {
	return func(ctx context.Context, text string, args []any, each func(scan func(...any) error) error) (err error) {
		rows, err := db.QueryContext(ctx, text, args...)
		if err != nil {
			return err
		}
		defer func() {
			if closeErr := rows.Close(); err == nil {
				err = closeErr
			}
		}()
		for rows.Next() {
			if err := each(rows.Scan); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}
