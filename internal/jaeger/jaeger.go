// Package jaeger reads traces from Jaeger's query API, version 3, whose answers
// are OpenTelemetry's own trace data: parents and links as they were sent.
package jaeger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client asks one Jaeger.
type Client struct {
	base *url.URL
	http *http.Client
}

// New makes a client of the Jaeger at base, such as http://127.0.0.1:16686, with
// or without a path that it is served under.
func New(base string, client *http.Client) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("%q is no http:// or https:// address", base)
	}
	return &Client{u, client}, nil
}

// Link is a span that another one names.
type Link struct {
	TraceID string `json:"traceId"`
	SpanID  string `json:"spanId"`
}

// Span is one span. Ids are in lower-case hexadecimal.
type Span struct {
	TraceID    string
	SpanID     string
	ParentID   string // "" for a root
	Name       string
	Kind       string // internal, server, client, producer, consumer
	Service    string
	Start, End time.Time
	Attributes map[string]string
	Links      []Link
	// Error is true where the span says that it failed; Status is what it says.
	Error  bool
	Status string
}

// Trace returns a trace's spans, in no order; none where Jaeger does not know it.
func (c *Client) Trace(ctx context.Context, id string) ([]Span, error) {
	return c.spans(ctx, c.at("api", "v3", "traces", id), nil)
}

// Search says which traces to find. All fields are required.
type Search struct {
	Service, Operation string
	From, Until        time.Time
	// Limit is the most traces.
	Limit int
}

// Find returns the spans of the traces that have a span of that operation, the newest first.
func (c *Client) Find(ctx context.Context, s Search) ([]Span, error) {
	return c.spans(ctx, c.at("api", "v3", "traces"), url.Values{
		"query.service_name": {s.Service}, "query.operation_name": {s.Operation}, "query.num_traces": {strconv.Itoa(s.Limit)},
		"query.start_time_min": {s.From.UTC().Format(time.RFC3339Nano)}, "query.start_time_max": {s.Until.UTC().Format(time.RFC3339Nano)},
	})
}

// Services returns the services of which Jaeger has spans.
func (c *Client) Services(ctx context.Context) ([]string, error) {
	var answer struct {
		Services []string `json:"services"`
	}
	u := c.at("api", "v3", "services")
	err := c.get(ctx, u, nil, &answer)
	if errors.Is(err, errNoTrace) {
		err = fmt.Errorf("ask Jaeger: there is no %s: is it Jaeger's query address?", u.Redacted())
	}
	return answer.Services, err
}

func (c *Client) at(parts ...string) *url.URL { return c.base.JoinPath(parts...) }

// errNoTrace is Jaeger's answer where it has none.
var errNoTrace = errors.New("no such trace")

func (c *Client) spans(ctx context.Context, u *url.URL, query url.Values) ([]Span, error) {
	var answer struct {
		Result traceData `json:"result"`
	}
	if err := c.get(ctx, u, query, &answer); err != nil {
		if errors.Is(err, errNoTrace) {
			return nil, nil
		}
		return nil, err
	}
	return answer.Result.spans(), nil
}

// mostBytes bounds an answer: a client is not to die of a trace that grew without end.
const mostBytes = 64 << 20

func (c *Client) get(ctx context.Context, u *url.URL, query url.Values, into any) error {
	u.RawQuery = query.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("ask Jaeger: %w", err)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return fmt.Errorf("ask Jaeger: %w", err)
	}
	defer func() { _ = answer.Body.Close() }() // it has been read
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("ask Jaeger: %w", err)
	case len(body) > mostBytes:
		return fmt.Errorf("ask Jaeger: the answer of %s has more than %d MiB", u.Path, mostBytes>>20)
	case answer.StatusCode == http.StatusNotFound && json.Valid(body):
		return errNoTrace
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("ask Jaeger: %s answers %s", u.Redacted(), answer.Status)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("ask Jaeger: %s answers what is not its API, version 3: %w", u.Redacted(), err)
	}
	return nil
}

// traceData is OTLP's TracesData as JSON.
type traceData struct {
	ResourceSpans []struct {
		Resource struct {
			Attributes []attribute `json:"attributes"`
		} `json:"resource"`
		ScopeSpans []struct {
			Spans []span `json:"spans"`
		} `json:"scopeSpans"`
	} `json:"resourceSpans"`
}

type span struct {
	TraceID  string      `json:"traceId"`
	SpanID   string      `json:"spanId"`
	ParentID string      `json:"parentSpanId"`
	Name     string      `json:"name"`
	Kind     kind        `json:"kind"`
	Start    nanos       `json:"startTimeUnixNano"`
	End      nanos       `json:"endTimeUnixNano"`
	Attrs    []attribute `json:"attributes"`
	Links    []Link      `json:"links"`
	Status   struct {
		Code    code   `json:"code"`
		Message string `json:"message"`
	} `json:"status"`
}

type attribute struct {
	Key   string                     `json:"key"`
	Value map[string]json.RawMessage `json:"value"`
}

func (d traceData) spans() []Span {
	var list []Span
	for _, r := range d.ResourceSpans {
		service := attributes(r.Resource.Attributes)["service.name"]
		for _, scope := range r.ScopeSpans {
			for _, s := range scope.Spans {
				list = append(list, Span{
					TraceID: s.TraceID, SpanID: s.SpanID, ParentID: s.ParentID, Name: s.Name, Kind: string(s.Kind), Service: service,
					Start: time.Unix(0, int64(s.Start)), End: time.Unix(0, int64(s.End)), Attributes: attributes(s.Attrs),
					Links: s.Links, Error: s.Status.Code == "error", Status: s.Status.Message,
				})
			}
		}
	}
	return list
}

// attributes are values as text; those that are no single value stay JSON.
func attributes(list []attribute) map[string]string {
	m := make(map[string]string, len(list))
	for _, a := range list {
		for _, raw := range a.Value { // one: the name is its type
			text := string(raw)
			var s string
			if json.Unmarshal(raw, &s) == nil {
				text = s
			}
			m[a.Key] = text
		}
	}
	return m
}

// nanos are a time, written as a number or, as JSON's numbers are too small for it, in quotes.
type nanos int64

// UnmarshalJSON implements json.Unmarshaler.
func (n *nanos) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseInt(strings.Trim(string(b), `"`), 10, 64)
	*n = nanos(v)
	return err
}

// kind is a span's kind, which is written as a name or as a number.
type kind string

var kinds = map[string]string{"0": "", "1": "internal", "2": "server", "3": "client", "4": "producer", "5": "consumer"}

// UnmarshalJSON implements json.Unmarshaler.
func (k *kind) UnmarshalJSON(b []byte) error {
	text := strings.Trim(string(b), `"`)
	if name, ok := kinds[text]; ok {
		text = name
	}
	*k = kind(strings.ToLower(strings.TrimPrefix(text, "SPAN_KIND_")))
	return nil
}

// code is a status code, which is written as a name or as a number.
type code string

// UnmarshalJSON implements json.Unmarshaler.
func (c *code) UnmarshalJSON(b []byte) error {
	switch strings.Trim(string(b), `"`) {
	case "2", "STATUS_CODE_ERROR":
		*c = "error"
	}
	return nil
}
