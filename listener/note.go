package listener

import (
	"slices"
	"strconv"
	"strings"
)

// The payloads of notifications:
//
//	123              record 123 has work
//	wants:123:4,7    record 123 has work for consumers 4 and 7 alone
//	more             a saturated worker leaves work to others
//	probe:…          a listener checks that notifications reach it
//
// PayloadMore is the payload by which a saturated worker calls the idle ones.
const PayloadMore = "more"

const (
	probePrefix = "probe:"
	wantsPrefix = "wants:"
)

type noteKind uint8

const (
	noteUnknown noteKind = iota
	noteRecord
	noteWants
	noteMore
	noteProbe
)

// Note is a notification's payload, read.
type Note struct {
	kind      noteKind
	record    int64
	consumers []int32
}

// ParseNote reads a payload. What it cannot read, a newer version may have
// sent: it stands for "something has work".
func ParseNote(payload string) Note {
	switch {
	case payload == PayloadMore:
		return Note{kind: noteMore}
	case strings.HasPrefix(payload, probePrefix):
		return Note{kind: noteProbe}
	case strings.HasPrefix(payload, wantsPrefix):
		return parseWants(strings.TrimPrefix(payload, wantsPrefix))
	}
	if record, ok := parseRecord(payload); ok {
		return Note{kind: noteRecord, record: record}
	}
	return Note{}
}

func parseWants(s string) Note {
	id, list, ok := strings.Cut(s, ":")
	if !ok {
		return Note{}
	}
	record, ok := parseRecord(id)
	if !ok {
		return Note{}
	}
	n := Note{kind: noteWants, record: record}
	for item := range strings.SplitSeq(list, ",") {
		c, err := strconv.ParseInt(item, 10, 32)
		if err != nil {
			return Note{}
		}
		n.consumers = append(n.consumers, int32(c))
	}
	return n
}

func parseRecord(s string) (int64, bool) {
	id, err := strconv.ParseInt(s, 10, 64)
	return id, err == nil && id > 0
}

// wantsAny says whether one of the hosted consumers is wanted.
func (n Note) wantsAny(hosted []int32) bool {
	return slices.ContainsFunc(n.consumers, func(c int32) bool { return slices.Contains(hosted, c) })
}
