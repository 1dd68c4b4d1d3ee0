package keyline

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// FuzzTyped: a payload either becomes the value that encoding/json makes of it,
// or a permanent error that says so; the handler is then not called.
func FuzzTyped(f *testing.F) {
	type line struct {
		By    string            `json:"by"`
		N     int8              `json:"n"`
		Tags  []string          `json:"tags"`
		Rest  map[string]any    `json:"rest"`
		Extra *json.RawMessage  `json:"extra"`
		Deep  map[string][]line `json:"deep"`
	}
	for _, s := range []string{`{"by":"u1","n":1,"tags":["a"],"rest":{"x":null}}`, `{"n":300}`, `null`, `[]`, `"x"`, ``, `{`, `{"n":1e0}`,
		`{"BY":"x","by":"y"}`, `{"deep":{"a":[{"by":"\ud800"}]}}`, `{"extra":{"a":1e9999}}`, "{\"by\":\"\xff\"}", strings.Repeat(`{"deep":{"a":[`, 50)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		called := false
		var got line
		err := Typed(func(_ context.Context, _ *Delivery, v line) error {
			called, got = true, v
			return nil
		})(t.Context(), &Delivery{Event: Event{Payload: payload}})
		var want line
		wrong := json.Unmarshal(payload, &want)
		switch {
		case called != (err == nil):
			t.Errorf("%q: called %v, error %v", payload, called, err)
		case err != nil:
			if v, _, _ := Judge(err); v != VerdictPermanent {
				t.Errorf("%q: %v is not permanent", payload, err)
			}
		case wrong != nil:
			t.Errorf("%q is taken as %+v; encoding/json: %v", payload, got, wrong)
		case fmt.Sprint(got) != fmt.Sprint(want) && got.Extra == nil && len(got.Deep) == 0:
			t.Errorf("%q becomes %+v, want %+v", payload, got, want)
		}
	})
}

// FuzzTraceparent: what stands in an event's headers is a valid span's address,
// by the form of W3C, or no link at all.
func FuzzTraceparent(f *testing.F) {
	const whole = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, s := range [][2]string{{whole, ""}, {whole, "a=b,c=d"}, {whole[:54], "a"}, {whole + "-x", ""}, {"01" + whole[2:] + "-what", "a=b,a=c"}, {"ff" + whole[2:], ""},
		{"", "a=b"}, {"00-00000000000000000000000000000000-b7ad6b7169203331-01", ""}, {strings.ToUpper(whole), "="}, {whole, strings.Repeat("a=b,", 40)}, {"\x00", "\xff"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, parent, state string) {
		sc := appendedIn(map[string]string{HeaderTraceparent: parent, HeaderTracestate: state})
		if !sc.IsValid() {
			if sc.TraceState().Len() > 0 {
				t.Errorf("%q, %q: a state without a trace", parent, state)
			}
			return
		}
		parts := strings.Split(parent, "-")
		if len(parts) < 4 || parts[1] != sc.TraceID().String() || parts[2] != sc.SpanID().String() || !sc.IsRemote() {
			t.Errorf("%q is read as %v %v", parent, sc.TraceID(), sc.SpanID())
		}
		again := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(trace.ContextWithRemoteSpanContext(t.Context(), sc), again)
		if back := appendedIn(again); back.TraceID() != sc.TraceID() || back.SpanID() != sc.SpanID() || back.TraceState().String() != sc.TraceState().String() {
			t.Errorf("%q, %q: told on as %v", parent, state, again)
		}
	})
}
