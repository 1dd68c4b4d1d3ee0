package telemetry

import (
	"context"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/keylinehq/keyline/keylinetype"
)

func linkTo(sampled bool) trace.Link {
	c := trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, Remote: true}
	if sampled {
		c.TraceFlags = trace.FlagsSampled
	}
	return trace.Link{SpanContext: trace.NewSpanContext(c)}
}

// sampled starts a span under what the environment asks for and says whether it is kept.
func sampled(ctx context.Context, t *testing.T, env map[string]string, catchUp float64, options ...trace.SpanStartOption) bool {
	t.Helper()
	quiet(t)
	for k, v := range env {
		t.Setenv(k, v)
	}
	s, err := sampler(catchUp)
	if err != nil {
		t.Fatal(err)
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithSampler(s))
	_, span := p.Tracer("test").Start(ctx, "span", options...)
	return span.SpanContext().IsSampled()
}

// Promise: what is linked to a trace is there if that trace is, whatever share of all is sampled; a catch-up is by
// its own share; nothing is sampled against always_off.
func TestADeliveryIsSampledAsItsAppendWas(t *testing.T) {
	off, none := map[string]string{"OTEL_TRACES_SAMPLER": "always_off"}, map[string]string{"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}
	mode := func(m keylinetype.Mode) trace.SpanStartOption {
		return trace.WithAttributes(attribute.String(keylinetype.AttrMode, string(m)))
	}
	root, child := context.Background(), trace.ContextWithSpanContext(context.Background(), linkTo(true).SpanContext)
	unsampledChild := trace.ContextWithSpanContext(context.Background(), linkTo(false).SpanContext)
	for name, tc := range map[string]struct {
		env     map[string]string
		catchUp float64
		ctx     context.Context
		options []trace.SpanStartOption
		want    bool
	}{
		"any other root":                              {nil, 0, root, nil, true},
		"any other root, none wanted":                 {none, 0, root, nil, false},
		"first run of a sampled append":               {none, 0, child, []trace.SpanStartOption{mode(keylinetype.Live), trace.WithLinks(linkTo(true))}, true},
		"first run of an unsampled append":            {nil, 1, unsampledChild, []trace.SpanStartOption{mode(keylinetype.Live), trace.WithLinks(linkTo(false))}, false},
		"retry of a sampled append":                   {none, 0, root, []trace.SpanStartOption{mode(keylinetype.Live), trace.WithLinks(linkTo(true))}, true},
		"retry of an unsampled append":                {nil, 1, root, []trace.SpanStartOption{mode(keylinetype.Live), trace.WithLinks(linkTo(false))}, false},
		"replay of a sampled append":                  {none, 0, root, []trace.SpanStartOption{mode(keylinetype.Replay), trace.WithLinks(linkTo(true))}, true},
		"batch with one sampled append":               {nil, 0, root, []trace.SpanStartOption{mode(keylinetype.Live), trace.WithLinks(linkTo(false), linkTo(true))}, true},
		"retry of an append without a trace":          {nil, 0, root, []trace.SpanStartOption{mode(keylinetype.Live)}, true},
		"retry without a trace, none wanted":          {none, 0, root, []trace.SpanStartOption{mode(keylinetype.Live)}, false},
		"catch-up, all wanted":                        {nil, 1, root, []trace.SpanStartOption{mode(keylinetype.CatchUp), trace.WithLinks(linkTo(true))}, true},
		"catch-up, none wanted":                       {nil, 0, root, []trace.SpanStartOption{mode(keylinetype.CatchUp), trace.WithLinks(linkTo(true))}, false},
		"catch-up, all wanted of none":                {none, 1, root, []trace.SpanStartOption{mode(keylinetype.CatchUp), trace.WithLinks(linkTo(true))}, false},
		"retry of a sampled append under always_off":  {off, 1, root, []trace.SpanStartOption{mode(keylinetype.Live), trace.WithLinks(linkTo(true))}, false},
		"retry under parentbased_always_off":          {map[string]string{"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, 0, root, []trace.SpanStartOption{mode(keylinetype.Live), trace.WithLinks(linkTo(true))}, true},
		"first run under traceidratio, as it is said": {map[string]string{"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, 0, child, []trace.SpanStartOption{mode(keylinetype.Live)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sampled(tc.ctx, t, tc.env, tc.catchUp, tc.options...); got != tc.want {
				t.Errorf("sampled: %v", got)
			}
		})
	}
}

func TestASamplerThatIsNoneIsRefused(t *testing.T) {
	quiet(t)
	for env, arg := range map[string]string{"sometimes": "", "parentbased_": "", "traceidratio": "2", "parentbased_traceidratio": "many"} {
		t.Setenv("OTEL_TRACES_SAMPLER", env)
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", arg)
		if _, err := sampler(0); err == nil || !strings.Contains(err.Error(), "OTEL_TRACES_SAMPLER") {
			t.Errorf("%s %s: %v", env, arg, err)
		}
	}
	if _, err := sampler(1.5); err == nil || !strings.Contains(err.Error(), "trace-catch-up") {
		t.Errorf("share: %v", err)
	}
}

func TestASpanIsNamedByItsStatementsFirstWord(t *testing.T) {
	for statement, want := range map[string]string{
		"select 1": "SELECT", "begin; select 2": "BEGIN", "\n-- why\n\n  with x as (select 1)": "WITH", "": "SQL", "(select 1)": "SQL", "-- nothing": "SQL", "COMMIT": "COMMIT",
	} {
		if got := operation(statement); got != want {
			t.Errorf("%q: %s", statement, got)
		}
	}
}
