package keyline

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCheckJSONTakesWhatJSONBTakes(t *testing.T) {
	t.Parallel()
	for text, size := range map[string]int{
		`null`: 4, `true`: 4, `false`: 5, `"e5"`: 4, `{"1e9":"2e9"}`: 13, `[1e2,1E+3,1e-4,12.5e1]`: 22 + 2 + 3 + 4 + 1,
		`"\\u0000"`: 9, `"\\\\u0000"`: 11, `"\"\u00e9\/"`: 12, `"\ud83d\ude00"`: 14, `"\uD83D\uDE00\u0041"`: 20, `"\u0001"`: 8,
		`"` + "\u00e9\U0001f600" + `"`: 8, `1e131071`: 8 + 131071, `[0,-0,0.0,0e5,0.50E-3,10]`: 25 + 5 + 3,
		`0.5e131072`: 10 + 131072, `12e131070`: 9 + 131070, `1e-16383`: 8 + 16383, `0.00001e131076`: 14 + 131076, `[0e200000]`: 10 + 200000,
	} {
		if got, err := checkJSON([]byte(text)); err != nil || got != size {
			t.Errorf("%s: size %d, %v; want %d", text, got, err, size)
		}
	}
	for text, says := range map[string]string{
		``: "JSON", `{`: "JSON", `1 2`: "JSON", `nul`: "JSON", "\"\xff\"": "UTF-8", "\"\x00\"": "JSON",
		`"\u0000"`: `\u0000`, `"\\\u0000"`: `\u0000`, `{"\u0000":1}`: `\u0000`, `["a","\ud83d"]`: "surrogate", `"\ude00"`: "surrogate", `"\ud83d\u0041"`: "surrogate",
		`"\ud83dx"`: "surrogate", `"\ud83d\n"`: "surrogate", `"\ud83d\ud83d\ude00"`: "surrogate", `1e131072`: "range", `[1,12e131071]`: "range", `0.5e131073`: "range", `1e-16384`: "range",
		`1.5e-16383`: "range", `{"a":0.00001e131077}`: "range", strings.Repeat("1", 131073): "range", "-0." + strings.Repeat("1", 16384): "range", `0.0e-16383`: "range", `-1.5E-99999999999999999999`: "range",
	} {
		if _, err := checkJSON([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want an error about %s", text, err, says)
		}
	}
}

func FuzzCheckJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1e5,"\u0000"]}`, `"\ud83d\ude00"`, `"\ud83d`, `[1E+131073]`, "\"\xff\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		size, err := checkJSON(text) // must not panic, whatever it is given
		if err == nil && (!json.Valid(text) || size < len(text)) {
			t.Errorf("%q: accepted with size %d", text, size)
		}
	})
}
