//go:build !unix

package pgdev

import (
	"context"
	"errors"
)

// Server is not to be had on this system.
type Server struct{}

// Start says that this system cannot do it.
func Start(context.Context, Options) (*Server, error) {
	return nil, errors.New("an embedded PostgreSQL needs a Unix system; set DATABASE_URL instead")
}

// The rest of Server exists for the compiler.
func (*Server) URL(string) string             { return "" }
func (*Server) TCPURL(string) string          { return "" }
func (*Server) PID() int                      { return 0 }
func (*Server) DataDir() string               { return "" }
func (*Server) LogFile() string               { return "" }
func (*Server) BinDir() string                { return "" }
func (*Server) Stop() error                   { return nil }
func (*Server) Restart(context.Context) error { return nil }
func (*Server) Kill()                         {}
