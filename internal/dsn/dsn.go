// Package dsn reads connection strings. What is wrong with one is said without showing it: it holds a password, and what cannot
// be read cannot be redacted.
package dsn

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// errHost is of a host that is a part of the password: it would be looked up, and named by the error and to the name server.
var errHost = errors.New("the connection string cannot be read: its host holds an @; in a URL, an @ of the password is written %40")

// Pool reads a connection string as a pool does, with the parameters that are the pool's own.
func Pool(text string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, hide(err)
	}
	if !plausible(cfg.ConnConfig) {
		return nil, errHost
	}
	UTF8(cfg.ConnConfig)
	return cfg, nil
}

// One reads a connection string as one connection does.
func One(text string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, hide(err)
	}
	if !plausible(cfg) {
		return nil, errHost
	}
	UTF8(cfg)
	return cfg, nil
}

// UTF8 has a session speak UTF-8, which is all that the driver speaks, whatever the default of its role or database is: under
// another one keys and payloads would become other texts, or could not be read at all.
func UTF8(cfg *pgx.ConnConfig) {
	if _, chosen := cfg.RuntimeParams["client_encoding"]; !chosen {
		cfg.RuntimeParams["client_encoding"] = "UTF8"
	}
}

// plausible says whether no host holds an @ but at its beginning, where it stands for an abstract socket.
func plausible(cfg *pgx.ConnConfig) bool {
	bad := func(host string) bool { return strings.LastIndexByte(host, '@') > 0 && !strings.HasPrefix(host, "/") }
	for _, f := range cfg.Fallbacks {
		if bad(f.Host) {
			return false
		}
	}
	return !bad(cfg.Host)
}

// hide keeps of an error what is wrong, and not with what: the driver shows the string with the passwords that it recognizes
// masked, which those are not that stand where it expects none.
func hide(err error) error {
	const says, end = "the connection string cannot be read", "`: "
	var of *pgconn.ParseConfigError
	if !errors.As(err, &of) {
		return errors.New(says)
	}
	message := of.Error()
	if cause := of.Unwrap(); cause != nil { // it may quote what it has stumbled over
		message = strings.TrimSuffix(message, " ("+cause.Error()+")")
	}
	at := strings.LastIndex(message, end)
	if at < 0 {
		return errors.New(says)
	}
	return errors.New(says + ": " + message[at+len(end):])
}
