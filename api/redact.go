package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/keylinehq/keyline"
)

// Redacted is what stands where a value was taken out.
const Redacted = "[redacted]"

// RedactFields makes a hook that takes the values of these fields out of payloads, at any depth. Case, dashes and
// underscores make no difference between names.
func RedactFields(names ...string) keyline.Redact {
	hidden := make([]string, len(names))
	for i, n := range names {
		hidden[i] = plainName(n)
	}
	return func(_ keyline.EventView, payload json.RawMessage) (json.RawMessage, error) {
		d := json.NewDecoder(bytes.NewReader(payload))
		d.UseNumber() // a number is shown as it was appended
		var v any
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("read payload: %w", err)
		}
		out, err := json.Marshal(redact(v, hidden))
		if err != nil {
			return nil, fmt.Errorf("write payload: %w", err)
		}
		return out, nil
	}
}

func plainName(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name))
}

func redact(v any, hidden []string) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if slices.Contains(hidden, plainName(name)) {
				v[name] = Redacted
				continue
			}
			v[name] = redact(value, hidden)
		}
	case []any:
		for i := range v {
			v[i] = redact(v[i], hidden)
		}
	}
	return v
}
