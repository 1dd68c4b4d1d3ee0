package keylinetype

import "strings"

// maxRecordType keeps a prefix that is no name of a type from being taken for one.
const maxRecordType = 64

// RecordType is the kind of thing that the record is, by its key: what comes
// before the first ":", "activity" for "activity:42", or "record" where the key
// has no such prefix. It names the destination in traces and metrics, which
// must not have as many values as there are records.
func (k Key) RecordType() string {
	prefix, _, found := strings.Cut(k.Record, ":")
	if !found || prefix == "" || len(prefix) > maxRecordType {
		return "record"
	}
	for i, c := range []byte(prefix) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
		case i > 0 && (c >= '0' && c <= '9' || c == '-' || c == '.'):
		default:
			return "record"
		}
	}
	return prefix
}
