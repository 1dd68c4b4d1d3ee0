package crm

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxName    = 200 // of organizations, people, accounts, subjects, keys
	maxOutcome = 500
	maxDetails = 10_000
	maxMinutes = 24 * 60
)

// Kinds are the kinds of activities.
var kinds = []string{"call", "meeting", "task", "email"}

// first is the first error that is one.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkText counts characters, as the schemas of the events do.
func checkText(field, s string, least, most int) error {
	switch n := utf8.RuneCountInString(s); {
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return invalid(field, "is not text")
	case least > 0 && strings.TrimSpace(s) == "":
		return invalid(field, "is missing")
	case n > most:
		return invalid(field, "has %d characters, at most %d", n, most)
	}
	return nil
}

func (r Request) check() error {
	if r.IfVersion < 0 {
		return invalid("version", "is negative")
	}
	return first(checkText("organization", r.Organization, 1, maxName), checkText("actor", r.Actor, 1, maxName),
		checkText("idempotency_key", r.IdempotencyKey, 0, maxName),
		checkText("correlation_id", r.CorrelationID, 0, maxName), checkText("causation_id", r.CausationID, 0, maxName))
}

func (n NewActivity) check() error {
	if !slices.Contains(kinds, n.Kind) {
		return invalid("kind", "is none of %s", strings.Join(kinds, ", "))
	}
	return first(checkText("subject", n.Subject, 1, maxName), checkText("details", n.Details, 0, maxDetails),
		checkText("account", n.Account, 0, maxName), checkOwner(n.Owner), checkTime(n.ScheduledAt), checkMinutes(n.Minutes, 1))
}

func (c Changes) check() error {
	if c == (Changes{}) {
		return invalid("changes", "are missing: subject, details or account")
	}
	var errs []error
	if c.Subject != nil {
		errs = append(errs, checkText("subject", *c.Subject, 1, maxName))
	}
	if c.Details != nil {
		errs = append(errs, checkText("details", *c.Details, 0, maxDetails))
	}
	if c.Account != nil {
		errs = append(errs, checkText("account", *c.Account, 0, maxName))
	}
	return first(errs...)
}

func (s Slot) check() error {
	if s.ScheduledAt.IsZero() {
		return invalid("scheduled_at", "is missing")
	}
	return first(checkTime(&s.ScheduledAt), checkMinutes(s.Minutes, 0))
}

func checkOwner(owner *string) error {
	if owner == nil {
		return nil
	}
	return checkText("owner", *owner, 1, maxName)
}

func checkTime(t *time.Time) error {
	if t != nil && (t.UTC().Year() < 1970 || t.UTC().Year() > 9999) {
		return invalid("scheduled_at", "is not a time between the years 1970 and 9999")
	}
	return nil
}

func checkMinutes(n, least int) error {
	if n < least || n > maxMinutes {
		return invalid("minutes", "%d is not between %d and %d", n, least, maxMinutes)
	}
	return nil
}
