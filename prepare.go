package keyline

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"
)

// Limits that the database has too (migrations/v2/append.sql).
const (
	maxTypeBytes    = 255
	maxNameBytes    = 512 // tenant, record key, idempotency key
	maxHeadersBytes = 64 << 10
	maxVersion      = math.MaxInt32
)

// prepared is an event that has passed the checks, in the form in which it is
// sent. Marshalled, it is an element of append_many's argument.
type prepared struct {
	tenant, record string // record "": no usable key
	eventType      string
	version        int
	payload        json.RawMessage
	headers        map[string]string
	idempotencyKey string
	id             string
	occurredAt     string
	expectedSeq    *int64
}

// MarshalJSON implements json.Marshaler.
func (p prepared) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Record         *string           `json:"record_key"`
		Type           string            `json:"event_type"`
		Payload        json.RawMessage   `json:"payload"`
		Tenant         string            `json:"tenant"`
		Version        int               `json:"version"`
		Headers        map[string]string `json:"headers,omitempty"`
		IdempotencyKey string            `json:"idempotency_key,omitempty"`
		ID             string            `json:"event_id,omitempty"`
		OccurredAt     string            `json:"occurred_at,omitempty"`
		ExpectedSeq    *int64            `json:"expected_seq,omitempty"`
	}{notEmpty(p.record), p.eventType, p.payload, p.tenant, p.version, p.headers, p.idempotencyKey, p.id, p.occurredAt, p.expectedSeq})
}

func (p prepared) key() Key { return Key{Tenant: p.tenant, Record: p.record} }

func notEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// checker finds what is wrong with an event before anything is sent, so that
// the caller's transaction is not aborted by it.
type checker struct {
	tenant *string
	limit  int
	types  typeSet
}

func newChecker(cfg ClientConfig) (checker, error) {
	c := checker{tenant: cfg.Tenant, limit: cfg.PayloadLimit}
	if c.limit < 0 {
		return c, wrong("ClientConfig.PayloadLimit", "is negative")
	}
	if c.limit == 0 {
		c.limit = DefaultPayloadLimit
	}
	if c.tenant != nil {
		pinned := *c.tenant // the caller's variable may change
		c.tenant = &pinned
		if err := checkText("ClientConfig.Tenant", pinned, maxNameBytes); err != nil {
			return c, err
		}
	}
	var err error
	c.types, err = newTypeSet(cfg.EventTypes, cfg.Strict)
	return c, err
}

// prepare checks an event; index is its place among several, -1 for a single one.
func (c checker) prepare(ctx context.Context, e NewEvent, index int) (prepared, error) {
	p := prepared{eventType: e.Type, version: e.Version, idempotencyKey: e.IdempotencyKey, expectedSeq: e.ExpectedSeq}
	if p.version == 0 {
		p.version = 1
	}
	switch {
	case e.ID != uuid.Nil:
		p.id = e.ID.String()
	case e.IdempotencyKey == "": // with a key it may be the first one's, which the database knows
		if id, err := uuid.NewV7(); err == nil { // else the database draws one, which takes it longer
			p.id = id.String()
		}
	}
	for _, check := range []func() *Error{
		func() *Error { return c.keys(&p, e) },
		func() *Error { return checkNames(p) },
		func() *Error { return c.payload(&p, e) },
		func() *Error { return setHeaders(ctx, &p, e) },
		func() *Error { return setTime(&p, e) },
	} {
		if err := check(); err != nil {
			if index >= 0 {
				err.Field = fmt.Sprintf("events[%d].%s", index, err.Field)
			}
			return prepared{}, err
		}
	}
	return p, nil
}

// keys settles tenant and record key.
func (c checker) keys(p *prepared, e NewEvent) *Error {
	tenant, err := c.tenantOf(e.Tenant)
	if err != nil {
		return err
	}
	p.tenant = tenant
	if strings.IndexByte(e.Record, 0) >= 0 {
		return wrong("Record", "contains a NUL byte")
	}
	if usable(e.Record) {
		p.record = e.Record
	}
	switch {
	case e.ExpectedSeq == nil:
	case *e.ExpectedSeq < 0:
		return wrong("ExpectedSeq", "is negative")
	case p.record == "":
		return wrong("ExpectedSeq", "needs a usable record key")
	}
	return nil
}

// tenantOf returns the tenant meant, which is the pinned one where there is one.
func (c checker) tenantOf(tenant string) (string, *Error) {
	if c.tenant != nil {
		if tenant != "" && tenant != *c.tenant {
			return "", invalid(CodeTenantMismatch, "Tenant", "this client is for another tenant")
		}
		return *c.tenant, nil
	}
	return tenant, checkText("Tenant", tenant, maxNameBytes)
}

// usable is the database's usable_key, and refuses what cannot be sent to it.
func usable(record string) bool {
	return !blank(record) && len(record) <= maxNameBytes && utf8.ValidString(record)
}

func blank(s string) bool { return strings.Trim(s, " \t\n\r\f\v") == "" }

func checkNames(p prepared) *Error {
	if blank(p.eventType) {
		return wrong("Type", "is empty")
	}
	if err := checkText("Type", p.eventType, maxTypeBytes); err != nil {
		return err
	}
	if p.version < 1 || p.version > maxVersion {
		return wrong("Version", "%d is out of range; versions count from 1", p.version)
	}
	return checkText("IdempotencyKey", p.idempotencyKey, maxNameBytes)
}

// checkText says whether Postgres can store a text; limit 0: of any length.
func checkText(field, s string, limit int) *Error {
	switch {
	case strings.IndexByte(s, 0) >= 0:
		return wrong(field, "contains a NUL byte")
	case !utf8.ValidString(s):
		return wrong(field, "is not valid UTF-8")
	case limit > 0 && len(s) > limit:
		return wrong(field, "has %d bytes, at most %d", len(s), limit)
	}
	return nil
}

func (c checker) payload(p *prepared, e NewEvent) *Error {
	text, err := marshalPayload(e.Payload)
	if err != nil {
		bad := invalid(CodeInvalidPayload, "Payload", "%v", err)
		bad.cause = err
		return bad
	}
	if len(text) > c.limit {
		return invalid(CodePayloadTooLarge, "Payload", "has %d bytes, at most %d", len(text), c.limit)
	}
	size, err := checkJSON(text)
	if err != nil {
		return invalid(CodeInvalidPayload, "Payload", "%v", err)
	}
	if size > c.limit {
		return invalid(CodePayloadTooLarge, "Payload", "has %d bytes once its numbers are written out, at most %d", size, c.limit)
	}
	p.payload = text
	return c.types.check(p.eventType, p.version, text)
}

func marshalPayload(payload any) (json.RawMessage, error) {
	switch v := payload.(type) {
	case []byte:
		if v == nil {
			return json.RawMessage("null"), nil
		}
		return json.RawMessage(v), nil
	case json.RawMessage:
		if v == nil {
			return json.RawMessage("null"), nil
		}
		return v, nil
	}
	return json.Marshal(payload)
}

// setHeaders adds the reserved headers to the caller's. The span in ctx is the
// append's own; where nothing is traced, a traceparent of the caller's stays.
func setHeaders(ctx context.Context, p *prepared, e NewEvent) *Error {
	p.headers = make(map[string]string, len(e.Headers)+4)
	maps.Copy(p.headers, e.Headers)
	delete(p.headers, HeaderFallbackKey) // append's own word
	if e.CorrelationID != "" {
		p.headers[HeaderCorrelationID] = e.CorrelationID
	}
	if e.CausationID != "" {
		p.headers[HeaderCausationID] = e.CausationID
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	if carrier[HeaderTraceparent] != "" {
		delete(p.headers, HeaderTracestate) // the caller's belongs to another trace
		maps.Copy(p.headers, carrier)
	}
	size := 0
	for k, v := range p.headers {
		if err := checkText("Headers", k, 0); err != nil {
			return err
		}
		field := fmt.Sprintf("Headers[%q]", k)
		switch k {
		case HeaderCorrelationID:
			field = "CorrelationID"
		case HeaderCausationID:
			field = "CausationID"
		}
		if err := checkText(field, v, 0); err != nil {
			return err
		}
		size += len(k) + len(v) + len(`"": "", `)
	}
	if size > maxHeadersBytes {
		return wrong("Headers", "have %d bytes, at most %d", size, maxHeadersBytes)
	}
	return nil
}

func setTime(p *prepared, e NewEvent) *Error {
	if e.OccurredAt.IsZero() {
		return nil
	}
	if err := checkTime("OccurredAt", e.OccurredAt); err != nil {
		return err
	}
	p.occurredAt = e.OccurredAt.UTC().Format(time.RFC3339Nano)
	return nil
}

// checkTime refuses years that RFC 3339 cannot write.
func checkTime(field string, t time.Time) *Error {
	if y := t.UTC().Year(); t.IsZero() || y < 1 || y > 9999 {
		return wrong(field, "has no time between the years 1 and 9999")
	}
	return nil
}
