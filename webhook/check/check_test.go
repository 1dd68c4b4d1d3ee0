// Package check holds what webhooks send to those who will read it: the Go
// library of Standard Webhooks, and the SDK of CloudEvents. It is a module of its own, so that neither is a dependency of Keyline.
package check

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/webhook"
)

var (
	newSecret = "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("n", 32)))
	oldSecret = "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("o", 24)))
)

// deliveries are what is hard to send, and what is not.
func deliveries() map[string]*keyline.Delivery {
	all := map[string]*keyline.Delivery{}
	for name, change := range map[string]func(*keyline.Delivery){
		"plain":            func(*keyline.Delivery) {},
		"no tenant":        func(d *keyline.Delivery) { d.Key.Tenant = "" },
		"null":             func(d *keyline.Delivery) { d.Payload = json.RawMessage("null") },
		"a text":           func(d *keyline.Delivery) { d.Payload = json.RawMessage(`"<b>&"`) },
		"a large number":   func(d *keyline.Delivery) { d.Payload = json.RawMessage(`{"n": 123456789012345678901234567890.5e3}`) },
		"a key of letters": func(d *keyline.Delivery) { d.Key.Record = "Zürich \"☃\" 100% 𝔘" },
		"a hidden key":     func(d *keyline.Delivery) { d.Key.Record = "a\x07b\u0085c\ufffe" },
		"headers": func(d *keyline.Delivery) {
			d.Headers = map[string]string{keyline.HeaderCorrelationID: "c\n1", keyline.HeaderCausationID: "ü", keyline.HeaderTraceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
		},
	} {
		d := &keyline.Delivery{Consumer: "hook", Attempt: 1, Mode: keyline.Live, IdempotencyKey: uuid.NewString()}
		d.Key, d.Seq, d.Type, d.Version = keyline.Key{Tenant: "acme", Record: "activity:42"}, 3, "activity.completed", 2
		d.ID, d.OccurredAt, d.Payload = uuid.New(), time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), json.RawMessage(`{"by": "u1"}`)
		change(d)
		all[name] = d
	}
	return all
}

// sent sends a delivery and returns the request as an endpoint got it.
func sent(t *testing.T, format webhook.Format, d *keyline.Delivery) (http.Header, []byte) {
	t.Helper()
	var (
		header http.Header
		body   []byte
	)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		header = r.Header.Clone()
		body, _ = io.ReadAll(r.Body)
	}))
	defer server.Close()
	secrets, err := webhook.ParseSecrets(newSecret + "\n" + oldSecret)
	if err != nil {
		t.Fatal(err)
	}
	handle, err := webhook.Handler(webhook.Config{URL: server.URL, AllowHTTP: true, Format: format, Source: "https://crm.example/",
		Secrets:        func(context.Context) ([][]byte, error) { return secrets, nil },
		AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := handle(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	return header, body
}

func TestStandardWebhooksVerifiesWhatIsSent(t *testing.T) {
	for _, format := range []webhook.Format{webhook.Structured, webhook.Binary} {
		for name, d := range deliveries() {
			header, body := sent(t, format, d)
			for _, secret := range []string{newSecret, oldSecret} { // a receiver that has either
				v, err := standardwebhooks.NewWebhook(secret)
				if err != nil {
					t.Fatal(err)
				}
				if err := v.Verify(body, header); err != nil {
					t.Errorf("%s, %s: %v", format, name, err)
				}
				if err := v.Verify(append(body, ' '), header); err == nil {
					t.Errorf("%s, %s: another body is verified", format, name)
				}
			}
		}
	}
}

func TestTheSDKOfCloudEventsReadsWhatIsSent(t *testing.T) {
	for _, format := range []webhook.Format{webhook.Structured, webhook.Binary} {
		for name, d := range deliveries() {
			header, body := sent(t, format, d)
			e, err := cehttp.NewEventFromHTTPRequest(&http.Request{Method: http.MethodPost, Header: header, Body: io.NopCloser(strings.NewReader(string(body)))})
			if err != nil {
				t.Errorf("%s, %s: %v", format, name, err)
				continue
			}
			if err := e.Validate(); err != nil {
				t.Errorf("%s, %s: %v", format, name, err)
			}
			if e.SpecVersion() != cloudevents.VersionV1 || e.ID() != d.ID.String() || e.Type() != d.Type || e.Source() != "https://crm.example/" || !e.Time().Equal(d.OccurredAt) ||
				e.DataContentType() != cloudevents.ApplicationJSON {
				t.Errorf("%s, %s: %s", format, name, e)
			}
			if want := strings.NewReplacer("\x07", "%07", "\u0085", "%C2%85", "\ufffe", "%EF%BF%BE").Replace(d.Key.Record); e.Subject() != want && format == webhook.Structured {
				t.Errorf("%s, %s: subject %q, want %q", format, name, e.Subject(), want)
			}
			if e.Extensions()["sequence"] != "3" || d.Key.Tenant != "" && e.Extensions()["tenant"] != "acme" {
				t.Errorf("%s, %s: %v", format, name, e.Extensions())
			}
			var got, want any
			if err := json.Unmarshal(e.Data(), &got); err != nil {
				t.Errorf("%s, %s: %v", format, name, err)
			}
			_ = json.Unmarshal(d.Payload, &want)
			if a, b := text(t, got), text(t, want); a != b {
				t.Errorf("%s, %s: data %s, want %s", format, name, a, b)
			}
		}
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	s, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(s)
}
