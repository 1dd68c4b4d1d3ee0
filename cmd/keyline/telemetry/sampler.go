package telemetry

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/keylinehq/keyline/keylinetype"
)

// DefaultCatchUp is the share of catch-up deliveries that are traced where nobody says.
const DefaultCatchUp = 0.01

// SampleDeliveries is a sampler that knows what a new root of Keyline is, and
// leaves every other span to next:
//
//   - A retry, a replay or a batch is linked to the appends of its events. It is
//     sampled if one of those was, so that a trace that is there is there
//     whole, and none is of a delivery whose beginning is missing.
//   - A catch-up is about old events, as many as there are: a share of
//     them is sampled, where next agrees.
func SampleDeliveries(next sdktrace.Sampler, catchUp float64) sdktrace.Sampler {
	return deliverySampler{next: next, catchUp: sdktrace.TraceIDRatioBased(catchUp)}
}

type deliverySampler struct{ next, catchUp sdktrace.Sampler }

// ShouldSample implements sdktrace.Sampler.
func (s deliverySampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	mode := deliveryMode(p.Attributes)
	switch {
	case mode == "" || trace.SpanContextFromContext(p.ParentContext).IsValid():
		return s.next.ShouldSample(p)
	case mode == string(keylinetype.CatchUp):
		if r := s.catchUp.ShouldSample(p); r.Decision == sdktrace.Drop {
			return r
		}
		return s.next.ShouldSample(p)
	case len(p.Links) == 0: // appended by somebody who does not trace
		return s.next.ShouldSample(p)
	}
	for _, l := range p.Links {
		if l.SpanContext.IsSampled() {
			return sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
		}
	}
	return sdktrace.SamplingResult{Decision: sdktrace.Drop}
}

// Description implements sdktrace.Sampler.
func (s deliverySampler) Description() string {
	return fmt.Sprintf("SampleDeliveries{%s,catch-up:%s}", s.next.Description(), s.catchUp.Description())
}

func deliveryMode(attrs []attribute.KeyValue) string {
	for _, a := range attrs {
		if a.Key == keylinetype.AttrMode {
			return a.Value.AsString()
		}
	}
	return ""
}

// sampler is what OTEL_TRACES_SAMPLER names, as the SDK reads it where it is
// given none, and above it SampleDeliveries, unless nothing at all is to be sampled.
func sampler(catchUp float64) (sdktrace.Sampler, error) {
	if catchUp < 0 || catchUp > 1 {
		return nil, fmt.Errorf("trace-catch-up %v: must be from 0 to 1", catchUp)
	}
	name := strings.ToLower(strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER")))
	if name == "" {
		name = "parentbased_always_on"
	}
	base, parented := strings.CutPrefix(name, "parentbased_")
	var s sdktrace.Sampler
	switch base {
	case "always_on":
		s = sdktrace.AlwaysSample()
	case "always_off":
		s = sdktrace.NeverSample()
	case "traceidratio":
		ratio := 1.0
		if text := strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG")); text != "" {
			var err error
			if ratio, err = strconv.ParseFloat(text, 64); err != nil || ratio < 0 || ratio > 1 {
				return nil, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG %q: must be from 0 to 1", text)
			}
		}
		s = sdktrace.TraceIDRatioBased(ratio)
	default:
		return nil, fmt.Errorf("OTEL_TRACES_SAMPLER %q: must be always_on, always_off or traceidratio, or one of these after parentbased_", name)
	}
	if !parented && base == "always_off" {
		return s, nil
	}
	if parented {
		s = sdktrace.ParentBased(s)
	}
	return SampleDeliveries(s, catchUp), nil
}
