// Package scratch gives the demo and the benchmark databases to work on: on an
// embedded server, or on a server that they are given, which they leave as it was.
package scratch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/pgdev"
)

// Server is a server with databases that go when it is closed.
type Server struct {
	embedded *pgdev.Server // nil: somebody else's
	admin    string
	made     []string
}

// Open starts an embedded server, or uses the one that given names ("": none).
// There the role must be allowed to create databases.
func Open(ctx context.Context, given string, o pgdev.Options) (*Server, error) {
	if given != "" {
		s := &Server{admin: given}
		return s, s.onAdmin(ctx, func(*pgx.Conn) error { return nil })
	}
	server, err := pgdev.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	return &Server{embedded: server, admin: server.URL("postgres")}, nil
}

// Embedded says whether the server is our own.
func (s *Server) Embedded() bool { return s.embedded != nil }

// Restart restarts the server, which must be our own.
func (s *Server) Restart(ctx context.Context) error { return s.embedded.Restart(ctx) }

// Database creates a database, a copy of template ("": an empty one), and
// returns its name and connection string.
func (s *Server) Database(ctx context.Context, prefix, template string) (name, connection string, err error) {
	random := uuid.New()
	name = fmt.Sprintf("%s_%x", prefix, random[:6])
	statement := "create database " + name
	if template != "" {
		statement += " template " + template
	}
	if connection, err = withDatabase(s.admin, name); err != nil {
		return "", "", err
	}
	err = s.onAdmin(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement)
		return err
	})
	if err != nil {
		return "", "", fmt.Errorf("create a database: %w", err)
	}
	s.made = append(s.made, name)
	return name, connection, nil
}

// Drop drops a database that Database has made.
func (s *Server) Drop(ctx context.Context, name string) error {
	err := s.onAdmin(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "drop database if exists "+name+" with (force)")
		return err
	})
	if err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// Close removes everything: the server if it is ours, else our databases.
func (s *Server) Close(ctx context.Context) error {
	if s.embedded != nil {
		return s.embedded.Stop() //nolint:contextcheck // it ends whatever becomes of ctx
	}
	var err error
	for _, name := range s.made {
		err = errors.Join(err, s.Drop(ctx, name))
	}
	return err
}

func (s *Server) onAdmin(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.admin)
	if err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", keyline.ErrUnavailable, err)
		}
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(conn)
}

// withDatabase is a connection string with another database in it.
func withDatabase(connection, name string) (string, error) {
	if !strings.HasPrefix(connection, "postgres://") && !strings.HasPrefix(connection, "postgresql://") {
		return connection + " dbname=" + name, nil // of keywords given twice, the last one counts
	}
	u, err := url.Parse(connection)
	if err != nil {
		return "", fmt.Errorf("connection string: %w", err)
	}
	u.Path, u.RawPath = "/"+name, ""
	return u.String(), nil
}

// Preload makes an extension's library part of our own server, which is
// restarted for it; false where the server does not have it, or is not ours.
func (s *Server) Preload(ctx context.Context, extension string) (available bool, err error) {
	if s.embedded == nil {
		return false, nil
	}
	err = s.onAdmin(ctx, func(conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, "select exists (select from pg_available_extensions where name = $1)", extension).Scan(&available)
		if err != nil || !available {
			return err
		}
		_, err = conn.Exec(ctx, "alter system set shared_preload_libraries = "+extension)
		return err
	})
	if err != nil || !available {
		return false, err
	}
	return true, s.embedded.Restart(ctx)
}
