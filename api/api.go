package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
)

// Defaults of a Config.
const (
	DefaultRequestsPerSecond = 50
	DefaultBurst             = 100
	DefaultStreams           = 64
	DefaultChangesEvery      = 2 * time.Second
)

// Config is how the API is served. The zero value is a good one.
type Config struct {
	// Logger is told of what goes wrong; nil: nobody is.
	Logger *slog.Logger
	// RequestsPerSecond and Burst bound what one token may ask for. Defaults 50 and 100.
	RequestsPerSecond float64
	Burst             int
	// Streams is how many streams of changes may be open at a time. Default 64.
	Streams int
	// ChangesEvery is how often each of them looks for changes. Default 2 s.
	ChangesEvery time.Duration
	// Doctor looks at what surrounds the installation; nil: /v1/doctor says that it is not offered here.
	Doctor func(context.Context) (DoctorReport, error)
}

// Handler serves the API. It is an http.Handler; Close ends what it has begun.
type Handler struct {
	gate    *keyline.Gate
	cfg     Config
	clock   clock.Clock
	mux     *http.ServeMux
	api     huma.API
	origins *http.CrossOriginProtection
	limits  *limits
	jobs    *jobs
	// closing ends streams and bulk acts.
	closing context.Context
	stop    context.CancelFunc
	streams chan struct{}
	// bodyTimeout is how long a request's body may take to come.
	bodyTimeout time.Duration
	// writeTimeout is how long a piece of an answer may take to be taken.
	writeTimeout time.Duration

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // bulk acts
}

// New makes the API behind a gate. Nothing is connected before the first request.
func New(gate *keyline.Gate, cfg Config) (*Handler, error) {
	switch {
	case gate == nil:
		return nil, errors.New("api: gate: is nil")
	case cfg.RequestsPerSecond < 0 || cfg.Burst < 0 || cfg.Streams < 0 || cfg.ChangesEvery < 0:
		return nil, errors.New("api: RequestsPerSecond, Burst, Streams and ChangesEvery must not be negative")
	}
	return build(gate, cfg), nil
}

func build(gate *keyline.Gate, cfg Config) *Handler {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	orDefault(&cfg.RequestsPerSecond, DefaultRequestsPerSecond)
	orDefault(&cfg.Burst, DefaultBurst)
	orDefault(&cfg.Streams, DefaultStreams)
	orDefault(&cfg.ChangesEvery, DefaultChangesEvery)
	c := clock.Real()
	h := &Handler{
		gate: gate, cfg: cfg, clock: c, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(),
		limits: newLimits(c, cfg.RequestsPerSecond, cfg.Burst), jobs: newJobs(), streams: make(chan struct{}, cfg.Streams),
		bodyTimeout: bodyTimeout, writeTimeout: writeTimeout,
	}
	h.closing, h.stop = context.WithCancel(context.Background())
	h.api = humago.New(h.mux, description())
	h.register()
	describeNulls(h.api.OpenAPI().Components.Schemas)
	// Only what this package answers with is described.
	delete(h.api.OpenAPI().Components.Schemas.Map(), "ErrorModel")
	return h
}

func orDefault[T comparable](v *T, byDefault T) {
	var zero T
	if *v == zero {
		*v = byDefault
	}
}

// Version is that of the API: what is under /v1 keeps its meaning.
const Version = "1.0.0"

// description is the API before its operations: without the pages and schemas that huma would serve.
func description() huma.Config {
	cfg := huma.DefaultConfig("Keyline admin API", Version)
	cfg.Info.Description = "What operators see and do. Every request but /livez carries a token: `Authorization: Bearer kl_…`. " +
		"Every act takes a reason and is in the audit, in the token's name. What is one tenant's token's is that tenant's alone: what belongs to others is not found."
	cfg.Components.Schemas = huma.NewMapRegistry(schemaPrefix, schemaName)
	cfg.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		securityScheme: {Type: "http", Scheme: "bearer", Description: "A token of `keyline token create`. The roles, each of which may what those before it may: viewer, operator, admin."},
	}
	cfg.OpenAPIPath, cfg.DocsPath, cfg.SchemasPath = "", "", ""
	cfg.CreateHooks = nil
	cfg.RejectUnknownQueryParameters = true
	cfg.Transformers = []huma.Transformer{rewrite}
	return cfg
}

// schemaPrefix is where the description has its schemas.
const schemaPrefix = "#/components/schemas/"

// schemaName names a schema as the documentation does, and not as the store.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	for old, now := range map[string]string{"OverviewWorker": "Worker", "OverviewConsumer": "Consumer", "DeadLetterRow": "DeadLetter", "AuditRow": "AuditEntry",
		"TokenRow": "Token"} {
		name = strings.ReplaceAll(name, old, now)
	}
	return name
}

// begin runs f on a goroutine that Close waits for; false: it is closed.
func (h *Handler) begin(f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.running.Go(f)
	}
	return !h.closed
}

// Close ends open streams and bulk acts, and waits for the latter or for ctx. What they had given stays given.
func (h *Handler) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.stop()
	done := make(chan struct{})
	go func() {
		h.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// OpenAPI returns the description of the API, as YAML.
func OpenAPI() ([]byte, error) {
	return build(nil, Config{}).api.OpenAPI().YAML()
}

// OpenAPIJSON returns the description of the API, as JSON.
func OpenAPIJSON() ([]byte, error) {
	return json.Marshal(build(nil, Config{}).api.OpenAPI())
}
