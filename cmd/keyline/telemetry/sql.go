package telemetry

import (
	"strings"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// SQL makes a span of each statement that runs inside one, for ConnConfig.Tracer
// of a pool; nil where the provider makes no spans. Statements that run inside none, such as a
// worker's polls, get none. A span has the statement's text and none of its arguments.
func SQL(provider trace.TracerProvider) pgx.QueryTracer {
	if _, silent := provider.(noop.TracerProvider); silent {
		return nil
	}
	t := otelpgx.NewTracer(otelpgx.WithTracerProvider(provider), otelpgx.WithMeterProvider(noopmetric.NewMeterProvider()),
		otelpgx.WithSpanNameFunc(operation), otelpgx.WithDisableConnectionDetailsInAttributes())
	return sqlTracer{t, t, t, t, t}
}

// sqlTracer leaves out the preparation of statements, which would have spans
// named as the statements inside theirs.
type sqlTracer struct {
	pgx.QueryTracer
	pgx.BatchTracer
	pgx.CopyFromTracer
	pgx.ConnectTracer
	pgxpool.AcquireTracer
}

// operation is a statement's first word, which the comments in front of it are not.
func operation(statement string) string {
	for line := range strings.Lines(statement) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "--") {
			continue
		}
		end := strings.IndexFunc(line, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') })
		if end < 0 {
			end = len(line)
		}
		if end > 0 {
			return strings.ToUpper(line[:end])
		}
		break
	}
	return "SQL"
}
