package outbox

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Settings describe an outbox table. Expressions are SQL over a row of it: columns by their names, operators, and functions
// of pg_catalog and of the table's schema (others with their schema).
type Settings struct {
	// Table is the table's name, with its schema where that is not the connection's. Required.
	Table string `json:"table"`
	// ID is the column that names a row: NOT NULL, with a unique index of its own. Required.
	ID string `json:"id"`
	// Created is the column that the old drainer orders by, before the id. Required; it may be the id again.
	Created string `json:"created"`
	// Key is the expression that gives the record's key, such as payload->>'activity_id'. Required.
	// A row for which it gives null, nothing but blanks or more than 512 bytes becomes its own record.
	Key string `json:"key"`
	// Type is the expression of the event's type. Required.
	Type string `json:"type"`
	// Payload is the expression of the payload, of type json or jsonb. Required.
	Payload string `json:"payload"`
	// Tenant is the expression of the tenant; "": none.
	Tenant string `json:"tenant,omitempty"`
	// Headers is the expression of the headers, a json or jsonb object of strings; "": none.
	Headers string `json:"headers,omitempty"`
	// Version is the expression of the version of the payload's schema; "": 1.
	Version string `json:"version,omitempty"`
	// OccurredAt is the expression of when it happened, a timestamptz; "": Created, where that is one.
	OccurredAt string `json:"occurred_at,omitempty"`
	// Pending is the condition by which a row waits: whatever is not terminal, also what a drainer has claimed
	// or will retry. Required.
	Pending string `json:"pending"`
	// Done is what the old drainer sets on a row that it is done with, such as processed_at = clock_timestamp(). It must
	// end Pending. Required.
	Done string `json:"done"`
	// KeyColumn is the text column that keeps the key, made where it is missing; "" means keyline_key.
	// A key that is in it already is taken as it is.
	KeyColumn string `json:"key_column"`
	// AtColumn is the timestamptz column that keeps when Keyline was handed the row; "" means keyline_at.
	AtColumn string `json:"at_column"`
}

// WithDefaults returns the settings with what was left out.
func (s Settings) WithDefaults() Settings {
	if s.KeyColumn == "" {
		s.KeyColumn = "keyline_key"
	}
	if s.AtColumn == "" {
		s.AtColumn = "keyline_at"
	}
	return s
}

// quote is what the bodies of our functions are quoted with.
const quote = "$keyline$"

// Validate says which setting is missing or can never be right. Whether the database understands them, Probe says.
func (s Settings) Validate() error {
	for _, f := range []struct {
		name, value string
		required    bool
	}{
		{"table", s.Table, true}, {"id", s.ID, true}, {"created", s.Created, true}, {"key", s.Key, true}, {"type", s.Type, true},
		{"payload", s.Payload, true}, {"tenant", s.Tenant, false}, {"headers", s.Headers, false}, {"version", s.Version, false},
		{"occurred_at", s.OccurredAt, false}, {"pending", s.Pending, true}, {"done", s.Done, true},
	} {
		switch {
		case f.required && strings.TrimSpace(f.value) == "":
			return invalid("setting %s is missing", f.name)
		case strings.Contains(f.value, quote) || strings.ContainsRune(f.value, 0):
			return invalid("setting %s contains %q or a NUL byte", f.name, quote)
		}
	}
	s = s.WithDefaults()
	if columns := []string{s.KeyColumn, s.AtColumn, s.ID}; s.KeyColumn == s.AtColumn || slices.Contains(columns[:2], s.ID) {
		return invalid("id, key_column and at_column must be three columns")
	}
	_, err := s.assignments()
	return err
}

// assignment is one column of Done.
type assignment struct{ column, expr string }

var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$]*$`)

// assignments reads Done: column = expression, several parted by commas.
func (s Settings) assignments() ([]assignment, error) {
	var list []assignment
	for _, part := range splitTop(s.Done) {
		name, expr, found := strings.Cut(part, "=")
		name, expr = strings.TrimSpace(name), strings.TrimSpace(expr)
		switch {
		case !found || expr == "":
			return nil, invalid("setting done: %q is no assignment such as processed_at = clock_timestamp()", strings.TrimSpace(part))
		case len(name) > 2 && name[0] == '"' && name[len(name)-1] == '"':
			name = strings.ReplaceAll(name[1:len(name)-1], `""`, `"`)
		case plainName.MatchString(name):
			name = strings.ToLower(name)
		default:
			return nil, invalid("setting done: %q is no column", name)
		}
		list = append(list, assignment{name, expr})
	}
	return list, nil
}

// splitTop splits at commas that are in no quotes and no brackets.
func splitTop(s string) []string {
	var (
		parts []string
		depth int
		in    rune
		from  int
	)
	for i, r := range s {
		switch {
		case in != 0:
			if r == in {
				in = 0
			}
		case r == '\'' || r == '"':
			in = r
		case r == '(' || r == '[':
			depth++
		case r == ')' || r == ']':
			depth--
		case r == ',' && depth == 0:
			parts = append(parts, s[from:i])
			from = i + 1
		}
	}
	return append(parts, s[from:])
}

// mentions reports whether an expression may read a column.
func mentions(expr, column string) bool {
	return regexp.MustCompile(`(?i)(^|[^a-z0-9_$])` + regexp.QuoteMeta(column) + `($|[^a-z0-9_$])`).MatchString(expr)
}

// expressions are the settings that are SQL, by name.
func (s Settings) expressions() map[string]string {
	m := map[string]string{"key": s.Key, "type": s.Type, "payload": s.Payload, "pending": s.Pending}
	for name, expr := range map[string]string{"tenant": s.Tenant, "headers": s.Headers, "version": s.Version, "occurred_at": s.OccurredAt} {
		if expr != "" {
			m[name] = expr
		}
	}
	list, _ := s.assignments()
	for i, a := range list {
		m[fmt.Sprintf("done[%d]", i)] = a.expr
	}
	return m
}
