package listener

import (
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The slot merges wakes and forgets none: every record that was put is either
// named or covered by a claim of everything.
func TestSlotCoalescesWakesAndDropsNoFact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSlot()
		var causes Cause
		var records []int64
		unbounded := false
		for range rapid.IntRange(1, 30).Draw(t, "wakes") {
			w := Wake{Causes: 1 << rapid.IntRange(0, 7).Draw(t, "cause"), Unbounded: rapid.IntRange(0, 19).Draw(t, "unbounded") == 0}
			if !w.Unbounded {
				w.Records = rapid.SliceOfN(rapid.Int64Range(1, 40), 0, 2).Draw(t, "records")
			}
			causes |= w.Causes
			unbounded = unbounded || w.Unbounded
			records = append(records, w.Records...)
			s.put(w)
		}
		slices.Sort(records)
		records = slices.Compact(records)
		got := <-s
		if len(s) != 0 {
			t.Fatal("more than one wake in the slot")
		}
		if got.Causes != causes {
			t.Fatalf("causes %v, want %v", got.Causes, causes)
		}
		if unbounded && !got.Unbounded {
			t.Fatal("the slot forgot that a claim of everything was asked for")
		}
		if got.Unbounded {
			if !unbounded && len(records) <= maxRecords {
				t.Fatalf("unbounded for %d records", len(records))
			}
			return
		}
		slices.Sort(got.Records)
		if !slices.Equal(got.Records, records) {
			t.Fatalf("records %v, want %v", got.Records, records)
		}
	})
}

func TestCauseNames(t *testing.T) {
	if got := (Granted | Notified | CatchUp).String(); got != "granted+notified+catch_up" {
		t.Errorf("String() = %q", got)
	}
	if got := Cause(0).String(); got != "none" {
		t.Errorf("String() of no cause = %q", got)
	}
}

func TestParseNote(t *testing.T) {
	for payload, want := range map[string]Note{
		"42":                  {kind: noteRecord, record: 42},
		"9223372036854775807": {kind: noteRecord, record: 1<<63 - 1},
		"wants:42:1":          {kind: noteWants, record: 42, consumers: []int32{1}},
		"wants:42:1,70000":    {kind: noteWants, record: 42, consumers: []int32{1, 70000}},
		"more":                {kind: noteMore},
		"probe:x":             {kind: noteProbe},
		"":                    {},
		"0":                   {},
		"-1":                  {},
		"9223372036854775808": {},
		"wants:42":            {},
		"wants:42:":           {},
		"wants:x:1":           {},
		"wants:42:1,,2":       {},
		"something else":      {},
	} {
		if diff := cmp.Diff(want, ParseNote(payload), cmp.AllowUnexported(Note{})); diff != "" {
			t.Errorf("ParseNote(%q) (-want +got):\n%s", payload, diff)
		}
	}
}

func FuzzParseNote(f *testing.F) {
	for _, s := range []string{"1", "wants:1:2,3", "more", "probe:", "wants::", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		switch n := ParseNote(s); n.kind {
		case noteRecord:
			if got, err := strconv.ParseInt(s, 10, 64); err != nil || got != n.record || got <= 0 {
				t.Errorf("%q is read as record %d", s, n.record)
			}
		case noteWants:
			if n.record <= 0 || len(n.consumers) == 0 {
				t.Errorf("%q is read as %+v", s, n)
			}
		}
	})
}
