package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/api"
	"github.com/keylinehq/keyline/cli/internal/doctor"
)

// apiSettings are the settings of the admin API as flags.
type apiSettings struct {
	listen       string
	cert, key    string
	requests     float64
	burst        int
	streams      int
	changesEvery time.Duration
	redact       []string
	payloadLimit int64
	behindTLS    bool
}

// defaultRedact are fields that no payload is shown with, where nobody says.
var defaultRedact = []string{"password", "passwd", "secret", "token", "access-token", "refresh-token", "api-key", "authorization", "credential", "private-key"}

const defaultListen = "127.0.0.1:7070"

func (a *app) apiCommand() *cobra.Command {
	var s apiSettings
	cmd := &cobra.Command{
		Use: "api", Short: "Serve the admin API until a signal ends it", Args: arguments(cobra.NoArgs),
		Long: "Serves what operators see and do over HTTP, until SIGINT or SIGTERM. Every request carries a token\n" +
			"(`keyline token create`). It listens on loopback; elsewhere only where there is a token that lives, and TLS or\n" +
			"--behind-tls. `keyline api openapi` prints its description.",
		Example: "  keyline token create olga --role admin\n  keyline api\n  curl -H \"Authorization: Bearer $TOKEN\" http://127.0.0.1:7070/v1/overview",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.serveAPI(cmd, &s) },
	}
	s.flags(cmd.Flags())
	cmd.AddCommand(&cobra.Command{
		Use: "openapi", Short: "Print the description of the admin API, as YAML; with --json as JSON", Args: arguments(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if a.global.json {
				text, err := api.OpenAPIJSON()
				if err != nil {
					return err
				}
				return a.printJSON(json.RawMessage(text))
			}
			text, err := api.OpenAPI()
			if err != nil {
				return err
			}
			_, err = a.stdout.Write(text)
			return err
		},
	})
	return cmd
}

func (s *apiSettings) flags(f *pflag.FlagSet) {
	f.StringVar(&s.listen, "listen", defaultListen, "where to listen")
	f.StringVar(&s.cert, "tls-cert", "", "file with the certificate, where it is served by TLS")
	f.StringVar(&s.key, "tls-key", "", "file with the certificate's key")
	f.BoolVar(&s.behindTLS, "behind-tls", false, "beyond loopback without TLS: something in front of it encrypts")
	f.Float64Var(&s.requests, "requests-per-second", api.DefaultRequestsPerSecond, "how much one token may ask for")
	f.IntVar(&s.burst, "burst", api.DefaultBurst, "how much of it at once")
	f.IntVar(&s.streams, "streams", api.DefaultStreams, "how many streams of changes may be open")
	f.DurationVar(&s.changesEvery, "changes-every", api.DefaultChangesEvery, "how often each stream looks for changes")
	f.StringSliceVar(&s.redact, "redact", defaultRedact, "fields of payloads whose values nobody is shown")
	f.Int64Var(&s.payloadLimit, "shown-payload", keyline.DefaultShownPayload, "how many bytes of JSON a payload may have to be shown")
}

// apiConnections are enough for many short requests.
const apiConnections = 16

func (a *app) serveAPI(cmd *cobra.Command, s *apiSettings) error {
	outliveReaders()
	ctx := cmd.Context()
	log, err := a.global.logger(a.stderr)
	if err != nil {
		return err
	}
	secure, err := s.tls()
	if err != nil {
		return err
	}
	address, local, err := apiAddress(s.listen)
	if err != nil {
		return err
	}
	if !local && secure == nil && !s.behindTLS {
		return usagef(cmd, "--listen %s: tokens would travel unencrypted: give --tls-cert and --tls-key, or --behind-tls where something in front of it encrypts", s.listen)
	}
	cfg, err := a.poolConfig(cmd)
	if err != nil {
		return err
	}
	pool, closeIt, err := a.openPool(cmd, apiConnections)
	if err != nil {
		return err
	}
	defer closeIt()
	gate, err := keyline.NewGate(pool, keyline.GateConfig{Schema: a.global.schema, Redact: api.RedactFields(s.redact...), PayloadLimit: s.payloadLimit})
	if err != nil {
		return err
	}
	if any, err := gate.AnyToken(ctx); err != nil {
		return err
	} else if !any && !local {
		return fmt.Errorf("--listen %s: there is no token that lives, so nobody could come in: `keyline token create` makes one", s.listen)
	} else if !any {
		log.Warn("there is no token that lives: `keyline token create` makes one")
	}
	handler, err := api.New(gate, api.Config{Logger: log, RequestsPerSecond: s.requests, Burst: s.burst, Streams: s.streams, ChangesEvery: s.changesEvery,
		Doctor: a.apiDoctor(cfg)})
	if err != nil {
		return &usageError{err: err}
	}
	return a.runAPI(ctx, address, secure, handler, log)
}

// runAPI serves until ctx ends, and then lets answers that are under way be given.
func (a *app) runAPI(ctx context.Context, address string, secure *tls.Config, handler *api.Handler, log *slog.Logger) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	scheme := "http"
	if secure != nil {
		listener, scheme = tls.NewListener(listener, secure), "https"
	}
	// Without ReadTimeout and WriteTimeout, which would end acts that wait and streams: the handler has bounds of its own.
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	log.Info("serving api", "url", scheme+"://"+listener.Addr().String())
	select {
	case err := <-ended:
		return errors.Join(err, handler.Close(context.WithoutCancel(ctx)))
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(a.signals.hurry, keyline.DefaultShutdownGrace)
	defer cancel()
	err = handler.Close(grace)                             //nolint:contextcheck // ctx has ended: the grace is what is left
	if stopped := server.Shutdown(grace); stopped != nil { //nolint:contextcheck // as above
		_ = server.Close()
		log.Warn("answers were cut short", "error", stopped)
	}
	if serving := <-ended; !errors.Is(serving, http.ErrServerClosed) {
		log.Warn("the server had ended by itself", "error", serving)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		log.Warn("bulk acts were cut short; what they gave stays given")
		err = nil
	}
	return err
}

func (s *apiSettings) tls() (*tls.Config, error) {
	if s.cert == "" && s.key == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(s.cert, s.key)
	if err != nil {
		return nil, &usageError{err: fmt.Errorf("--tls-cert and --tls-key: %w", err)}
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, nil
}

// apiAddress is where to listen, and whether nobody beyond this machine can reach it. Without a host: on loopback.
func apiAddress(listen string) (address string, local bool, err error) {
	address, err = listenAddress("listen", listen, false)
	if err != nil {
		return "", false, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", false, &usageError{err: fmt.Errorf("listen %q: %w", listen, err)}
	}
	// A name may be resolved to anything, but for the one that is loopback's.
	ip := net.ParseIP(host)
	return address, host == "localhost" || ip != nil && ip.IsLoopback(), nil
}

// apiDoctor looks at what surrounds the installation, as this process sees it.
func (a *app) apiDoctor(pool *pgxpool.Config) func(context.Context) (api.DoctorReport, error) {
	return func(ctx context.Context) (api.DoctorReport, error) {
		r, err := doctor.Run(ctx, doctor.Options{Pool: pool, Schema: a.global.schema, OTLP: otlpEndpoints(), Clock: a.clock})
		out := api.DoctorReport{OK: r.OK, Checks: []api.DoctorCheck{}}
		for _, c := range r.Checks {
			out.Checks = append(out.Checks, api.DoctorCheck{ID: c.ID, Status: string(c.Status), Detail: c.Detail, Fix: c.Fix})
		}
		return out, err
	}
}
