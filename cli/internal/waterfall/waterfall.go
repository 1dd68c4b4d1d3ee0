// Package waterfall gathers the traces of one event out of Jaeger and lays them
// out for a terminal.
package waterfall

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/keylinehq/keyline/internal/jaeger"
	"github.com/keylinehq/keyline/keylinetype"
)

// Attributes that tell deliveries apart.
const (
	messageID  = string(semconv.MessagingMessageIDKey)
	batchCount = string(semconv.MessagingBatchMessageCountKey)
	consumer   = "consumer" // a span's kind
)

// Parent is the span that an event was appended in.
type Parent struct{ TraceID, SpanID string }

// ParseTraceparent reads a trace context of version 00 or later; ok is false where it is none.
func ParseTraceparent(text string) (p Parent, ok bool) {
	parts := strings.Split(text, "-")
	if len(parts) < 4 || len(parts[1]) != 32 || len(parts[2]) != 16 {
		return Parent{}, false
	}
	return Parent{parts[1], parts[2]}, true
}

// Trace is one trace in which something of the event happened.
type Trace struct {
	ID string
	// Linked is true for a root of its own (a retry, a replay, a batch, a catch-up), false for the trace of the append.
	Linked bool
	Spans  []Line // in the order in which they are shown
}

// Line is a span in its place.
type Line struct {
	jaeger.Span
	Depth int
}

// Reader is what is needed of Jaeger.
type Reader interface {
	Trace(ctx context.Context, id string) ([]jaeger.Span, error)
	Find(ctx context.Context, s jaeger.Search) ([]jaeger.Span, error)
	Services(ctx context.Context) ([]string, error)
}

// Query says of which event, and where roots of its own are looked for: Jaeger's API
// finds spans by name and time, not by links.
type Query struct {
	Event     string
	Record    string // its record's key
	Appended  Parent
	Consumers []Consumer
	// From and Until bound the search.
	From, Until time.Time
	// Limit is the most traces that one search looks at.
	Limit int
}

// Consumer is one whose runs are looked for; Ends are when runs of it are known to have ended.
type Consumer struct {
	Name string
	Ends []time.Time
}

// endSlack is how much later than the database's time of a failure its span may seem to end.
const endSlack = 2 * time.Second

// Gather reads the trace of the append and the roots that are linked to it, by
// time. capped is true where a search ended at its limit, so that roots may be missing.
func Gather(ctx context.Context, from Reader, q Query) (traces []Trace, capped bool, err error) {
	spans, err := from.Trace(ctx, q.Appended.TraceID)
	if err != nil {
		return nil, false, err
	}
	if len(spans) > 0 {
		traces = append(traces, Trace{ID: q.Appended.TraceID, Spans: lay(withoutOthers(spans, q))})
	}
	services, err := from.Services(ctx)
	if err != nil {
		return nil, false, err
	}
	byTrace := map[string][]jaeger.Span{}
	for _, service := range services {
		for _, c := range q.Consumers {
			for _, until := range append(slices.Clone(c.Ends), q.Until) {
				found, err := from.Find(ctx, jaeger.Search{Service: service, Operation: "process " + c.Name, From: q.From, Until: until.Add(endSlack), Limit: q.Limit})
				if err != nil {
					return nil, false, err
				}
				capped = keep(byTrace, found) >= q.Limit || capped
			}
		}
	}
	delete(byTrace, q.Appended.TraceID)
	for id, spans := range byTrace {
		if slices.ContainsFunc(spans, func(s jaeger.Span) bool { return linked(s, q) }) {
			traces = append(traces, Trace{ID: id, Linked: true, Spans: lay(spans)})
		}
	}
	slices.SortStableFunc(traces, func(x, y Trace) int { return x.Spans[0].Start.Compare(y.Spans[0].Start) })
	return traces, capped, nil
}

// keep adds the spans of traces that are not there yet, and returns how many traces were found.
func keep(byTrace map[string][]jaeger.Span, found []jaeger.Span) int {
	fresh := map[string][]jaeger.Span{}
	for _, s := range found {
		fresh[s.TraceID] = append(fresh[s.TraceID], s)
	}
	for id, spans := range fresh {
		byTrace[id] = spans
	}
	return len(fresh)
}

// linked says whether a span is a delivery of the event: linked to its append,
// in which other events may have been appended too.
func linked(s jaeger.Span, q Query) bool {
	return s.Kind == consumer && ofEvent(s, q) &&
		slices.ContainsFunc(s.Links, func(l jaeger.Link) bool { return l.TraceID == q.Appended.TraceID && l.SpanID == q.Appended.SpanID })
}

// ofEvent goes by the record for a batch, which names its first event only.
func ofEvent(s jaeger.Span, q Query) bool {
	return s.Attributes[messageID] == q.Event || s.Attributes[batchCount] != "" && s.Attributes[keylinetype.AttrRecordKey] == q.Record
}

// withoutOthers leaves out deliveries of other events that the same call appended.
func withoutOthers(spans []jaeger.Span, q Query) []jaeger.Span {
	drop := map[string]bool{}
	for _, s := range spans {
		if s.Kind == consumer && s.Attributes[messageID] != "" && !ofEvent(s, q) {
			drop[s.SpanID] = true
		}
	}
	for again := true; again; {
		again = false
		for _, s := range spans {
			if drop[s.ParentID] && !drop[s.SpanID] {
				drop[s.SpanID], again = true, true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(spans), func(s jaeger.Span) bool { return drop[s.SpanID] })
}

// lay orders spans as a tree: children behind their parent, by time. A span whose parent is not
// there is a root.
func lay(spans []jaeger.Span) []Line {
	there := map[string]bool{}
	children := map[string][]jaeger.Span{}
	for _, s := range spans {
		there[s.SpanID] = true
	}
	for _, s := range spans {
		parent := s.ParentID
		if !there[parent] || parent == s.SpanID {
			parent = ""
		}
		children[parent] = append(children[parent], s)
	}
	lines := make([]Line, 0, len(spans))
	var walk func(parent string, depth int)
	walk = func(parent string, depth int) {
		list := children[parent]
		delete(children, parent) // what goes in a circle is not walked twice
		slices.SortStableFunc(list, func(x, y jaeger.Span) int {
			return cmp.Or(x.Start.Compare(y.Start), cmp.Compare(x.SpanID, y.SpanID))
		})
		for _, s := range list {
			lines = append(lines, Line{s, depth})
			walk(s.SpanID, depth+1)
		}
	}
	walk("", 0)
	return lines
}

// Bar draws where in a trace a span lies, in a line of width cells.
func Bar(t Trace, l Line, width int) string {
	begin, end := t.Spans[0].Start, t.Spans[0].End
	for _, s := range t.Spans {
		if s.Start.Before(begin) {
			begin = s.Start
		}
		if s.End.After(end) {
			end = s.End
		}
	}
	whole := max(end.Sub(begin), 1)
	from := int(int64(l.Start.Sub(begin)) * int64(width) / int64(whole))
	to := int((int64(l.End.Sub(begin))*int64(width) + int64(whole) - 1) / int64(whole))
	from = min(from, width-1)
	to = min(max(to, from+1), width)
	return strings.Repeat(" ", from) + strings.Repeat("━", to-from) + strings.Repeat(" ", width-to)
}
