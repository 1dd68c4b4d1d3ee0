package webhook

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/keylinehq/keyline"
)

// attributes are the CloudEvents context attributes of a delivery. They are the same for each attempt.
func (s *sender) attributes(d *keyline.Delivery) map[string]string {
	a := map[string]string{
		"specversion": "1.0", "id": d.ID.String(), "source": s.cfg.Source, "type": attribute(d.Type), "subject": attribute(d.Key.Record),
		"time": d.OccurredAt.UTC().Format(time.RFC3339Nano), "datacontenttype": "application/json",
		// The extensions of CloudEvents that say what Keyline says, and those that none says.
		"partitionkey": attribute(d.Key.Record), "sequence": strconv.FormatInt(d.Seq, 10), "eventversion": strconv.Itoa(d.Version),
	}
	for name, value := range map[string]string{
		"tenant": d.Key.Tenant, "correlationid": d.Headers[keyline.HeaderCorrelationID], "causationid": d.Headers[keyline.HeaderCausationID],
		"traceparent": d.Headers[keyline.HeaderTraceparent], "tracestate": d.Headers[keyline.HeaderTracestate],
	} {
		if value != "" {
			a[name] = attribute(value)
		}
	}
	return a
}

// attribute is a text as CloudEvents takes it: without control characters and noncharacters, which are escaped as in a URI.
func attribute(s string) string {
	bad := func(r rune) bool {
		return unicode.IsControl(r) || r == utf8.RuneError || r >= 0xFDD0 && r <= 0xFDEF || r&0xFFFE == 0xFFFE
	}
	if strings.IndexFunc(s, bad) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if !bad(r) {
			b.WriteRune(r)
			continue
		}
		escape(&b, string(r))
	}
	return b.String()
}

func escape(b *strings.Builder, s string) {
	for _, c := range []byte(s) {
		fmt.Fprintf(b, "%%%02X", c)
	}
}

// headerValue is an attribute as the HTTP binding of CloudEvents takes it: what is no printable ASCII, and space, quote and percent, is escaped.
func headerValue(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r > ' ' && r < 0x7F && r != '"' && r != '%' {
			b.WriteRune(r)
			continue
		}
		escape(&b, string(r))
	}
	return b.String()
}

// request puts a delivery into headers and a body.
func (s *sender) request(d *keyline.Delivery) (http.Header, []byte, error) {
	h := http.Header{}
	for name, value := range s.cfg.Headers {
		h.Set(name, value)
	}
	payload := d.Payload
	if len(payload) == 0 {
		payload = json.RawMessage("null")
	}
	body := []byte(payload)
	attributes := s.attributes(d)
	if s.cfg.Format == Binary {
		h.Set("Content-Type", attributes["datacontenttype"])
		delete(attributes, "datacontenttype")
		for name, value := range attributes {
			h.Set("ce-"+name, headerValue(value))
		}
	} else {
		h.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
		event := map[string]any{"data": payload}
		for name, value := range attributes {
			event[name] = value
		}
		var err error
		if body, err = json.Marshal(event); err != nil {
			return nil, nil, fmt.Errorf("write event: %w", err)
		}
	}
	h.Set("User-Agent", "keyline-webhook")
	h.Set("Idempotency-Key", d.IdempotencyKey)
	h.Set("Keyline-Attempt", strconv.Itoa(d.Attempt))
	h.Set("Keyline-Redelivered", strconv.FormatBool(d.Redelivered))
	h.Set("Keyline-Mode", string(d.Mode))
	h.Set("Keyline-Fencing-Token", strconv.FormatInt(d.Token, 10))
	for _, name := range []string{"traceparent", "tracestate"} {
		if v := attributes[name]; v != "" {
			h.Set(name, headerValue(v))
		}
	}
	return h, body, nil
}
