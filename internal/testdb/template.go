package testdb

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/migrations"
)

// schema is what a template is made of.
type schema struct {
	name    string
	files   fs.FS
	migrate func(ctx context.Context, conn *pgx.Conn, schema string) error
}

func keylineSchema(name string) schema {
	return schema{
		name:  name,
		files: migrations.FS(),
		migrate: func(ctx context.Context, conn *pgx.Conn, name string) error {
			_, _, err := migrations.Up(ctx, conn, name)
			return err
		},
	}
}

// key is a hash of everything that goes into the template.
func (s schema) key() (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", s.name)
	err := fs.WalkDir(s.files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(s.files, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%q %d\n", path, len(content))
		h.Write(content)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("hash the migrations: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// template returns the name of the template database for a schema, and makes it
// if this is the first process that wants it.
func (c *cluster) template(ctx context.Context, s schema) (string, error) {
	key, err := s.key()
	if err != nil {
		return "", err
	}
	// Held throughout: what the other tests of this process would do meanwhile
	// is wait for the same template.
	c.mu.Lock()
	defer c.mu.Unlock()
	if name, ok := c.templates[key]; ok {
		return name, nil
	}
	name := "keyline_template_" + key
	err = c.onAdmin(ctx, func(conn *pgx.Conn) error { return c.makeTemplate(ctx, conn, s, name) })
	if err != nil {
		return "", fmt.Errorf("template database %s: %w", name, err)
	}
	c.templates[key] = name
	return name, nil
}

func (c *cluster) makeTemplate(ctx context.Context, conn *pgx.Conn, s schema, name string) error {
	// Ends with the connection.
	if _, err := conn.Exec(ctx, "select pg_advisory_lock(hashtextextended($1, 0))", name); err != nil {
		return err
	}
	var made bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&made); err != nil || made {
		return err
	}
	// It gets its name when it is complete: a process that is killed half-way
	// leaves something that nobody takes for a template.
	building := name + "_building"
	if _, err := conn.Exec(ctx, "drop database if exists "+building+" with (force)"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "create database "+building+" template template0"); err != nil {
		return err
	}
	if err := c.migrateDatabase(ctx, building, s); err != nil {
		return err
	}
	// A database that somebody is connected to cannot be cloned.
	if _, err := conn.Exec(ctx, "alter database "+building+" allow_connections false"); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, "alter database "+building+" rename to "+name)
	return err
}

func (c *cluster) migrateDatabase(ctx context.Context, name string, s schema) error {
	u, err := withDatabase(c.admin, name)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, u)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := s.migrate(ctx, conn, s.name); err != nil {
		return err
	}
	// Statistics travel with the clone, and a planner that has none may take
	// another plan than in production.
	_, err = conn.Exec(ctx, "analyze")
	return err
}
