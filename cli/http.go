package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/keylinehq/keyline"
)

// The bounds of a request to a worker's health and metrics.
const (
	headerTimeout  = 5 * time.Second
	answerTimeout  = 15 * time.Second
	idleTimeout    = time.Minute
	maxHeaderBytes = 16 << 10
)

// servers are the listeners of a worker's process, each with what it serves.
type servers struct {
	log     *slog.Logger
	list    []*http.Server
	running sync.WaitGroup
}

// serveHTTP serves what the settings ask for, each on a listener of its own, until stop.
func serveHTTP(ctx context.Context, s *workerSettings, w *keyline.Worker, metrics http.Handler, log *slog.Logger) (*servers, error) {
	all := &servers{log: log}
	err := all.add(ctx, "http", s.http, false, public(w, metrics))
	if err == nil {
		err = all.add(ctx, "debug-http", s.debugHTTP, true, profiles())
	}
	if err != nil {
		all.stop()
		return nil, err
	}
	return all, nil
}

// stop ends them at once: nobody waits for these answers.
func (a *servers) stop() {
	for _, server := range a.list {
		_ = server.Close()
	}
	a.running.Wait()
}

func (a *servers) add(ctx context.Context, setting, address string, private bool, handler http.Handler) error {
	if address == "" {
		return nil
	}
	address, err := listenAddress(setting, address, private)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("%s: %w", setting, err)
	}
	server := bounded(handler, private, answerTimeout)
	server.ErrorLog = slog.NewLogLogger(a.log.Handler(), slog.LevelWarn)
	a.list = append(a.list, server)
	a.log.Info("serving "+setting, "url", "http://"+listener.Addr().String())
	a.running.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error(setting+" is not served any more", "error", err)
		}
	})
	return nil
}

// bounded is a server that gives a request so long to be read, and a public one as long to be answered: a profile takes
// as long as it was asked to.
func bounded(handler http.Handler, private bool, answer time.Duration) *http.Server {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: answer, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes}
	if !private {
		server.WriteTimeout = answer
	}
	return server
}

// listenAddress is where to listen: without a host, on loopback. What is private is not served
// on every interface there happens to be: its address has to be named.
func listenAddress(setting, address string, private bool) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", &usageError{err: fmt.Errorf("%s %q: %w", setting, address, err)}
	}
	if host == "" {
		host = "127.0.0.1"
	}
	if ip := net.ParseIP(host); private && ip != nil && ip.IsUnspecified() {
		return "", &usageError{err: fmt.Errorf("%s %q: profiles are not served on all interfaces: name the address", setting, address)}
	}
	return net.JoinHostPort(host, port), nil
}

// public is what anybody who reaches the port may see: no payloads, no profiles.
func public(w *keyline.Worker, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	health := w.Handler()
	mux.Handle("/livez", health)
	mux.Handle("/readyz", health)
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	return mux
}

// profiles are pprof's, but for the command line, which may hold a password.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
