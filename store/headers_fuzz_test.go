package store

import (
	"encoding/json"
	"testing"
)

// FuzzHeaders: an event's headers are read as the object of strings that they
// are, or are refused. (The database holds nothing but objects.)
func FuzzHeaders(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":"b"}`, `{"a":1}`, `{"a":null}`, `[]`, `null`, ``, `{"a":"\ud83d\ude00"}`, "{\"\xff\":\"x\"}", `{"a":{"b":"c"}}`, `{"a":"b","a":"c"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var got map[string]string
		err := scanHeaders(raw, &got)
		if len(raw) == 2 {
			if err != nil || got != nil {
				t.Errorf("%q: %v, %v", raw, got, err)
			}
			return
		}
		var plain map[string]any
		if wrong := json.Unmarshal(raw, &plain); (wrong != nil) && err == nil {
			t.Fatalf("%q is read as %v, and is no object: %v", raw, got, wrong)
		}
		for k, v := range plain {
			if text, is := v.(string); err == nil && (is && got[k] != text || !is && v != nil) {
				t.Errorf("%q: %q is read as %q", raw, k, got[k])
			}
		}
	})
}
