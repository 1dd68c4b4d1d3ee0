package keylinetype

import (
	"strings"
	"testing"
)

func TestRecordTypeIsThePrefixOfTheKey(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"activity:42": "activity", "sales-order:a:b": "sales-order", "x.y_z2:1": "x.y_z2",
		"": "record", "42": "record", ":42": "record", "0f8a-11:x": "record", "an activity:1": "record", strings.Repeat("a", 65) + ":1": "record", "é:1": "record",
	} {
		if got := (Key{Record: key}).RecordType(); got != want {
			t.Errorf("RecordType of %q = %q, want %q", key, got, want)
		}
	}
}
