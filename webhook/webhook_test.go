package webhook

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

func secret(b byte) string {
	return secretPrefix + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune(b)), leastSecret)))
}

func fixed(t testing.TB, texts ...string) Secrets {
	t.Helper()
	list, err := ParseSecrets(strings.Join(texts, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return func(context.Context) ([][]byte, error) { return list, nil }
}

func delivery() *keyline.Delivery {
	d := &keyline.Delivery{Consumer: "hook", Attempt: 2, Redelivered: true, Mode: keyline.Live, Token: 7, IdempotencyKey: "key-1"}
	d.Key, d.Seq, d.Type, d.Version = keyline.Key{Tenant: "acme", Record: "activity:42"}, 3, "activity.completed", 2
	d.ID, d.OccurredAt = uuid.MustParse("0197c2a0-5b1e-7c9a-8f3e-2d1c0b9a8f7e"), time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	d.Payload, d.Headers = json.RawMessage(`{"by": "u1", "n": 12345678901234567890}`), map[string]string{keyline.HeaderCorrelationID: "c 1"}
	return d
}

// received is a request as an endpoint got it.
type received struct {
	header http.Header
	body   string
}

// endpoint answers as a test says, and keeps what it got.
func endpoint(t *testing.T, answer http.HandlerFunc) (url string, got chan received) {
	t.Helper()
	got = make(chan received, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- received{r.Header.Clone(), string(body)}
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, got
}

func status(code int, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, "SECRET ANSWER")
	}
}

// open makes a sender to an endpoint of this machine, whose connections end with the test.
func open(t *testing.T, cfg Config) *sender {
	t.Helper()
	if cfg.AllowAddresses == nil {
		cfg.AllowAddresses = loopback
	}
	cfg.AllowHTTP, cfg.Unsigned = true, cfg.Secrets == nil
	s, err := newSender(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

func TestAnEventIsSentSignedInEitherFormat(t *testing.T) {
	url, got := endpoint(t, status(http.StatusAccepted))
	now := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	for _, format := range []Format{Structured, Binary} {
		s := open(t, Config{URL: url, Format: format, Source: "https://crm.example/", Secrets: fixed(t, secret('n'), secret('o')), Headers: map[string]string{"X-Env": "prod"}})
		s.clock = clock.NewFake(now)
		if err := s.handle(t.Context(), delivery()); err != nil {
			t.Fatal(err)
		}
		r := <-got
		for name, want := range map[string]string{"webhook-id": "key-1", "webhook-timestamp": fmt.Sprint(now.Unix()), "Idempotency-Key": "key-1", "Keyline-Attempt": "2",
			"Keyline-Redelivered": "true", "Keyline-Fencing-Token": "7", "X-Env": "prod"} {
			if v := r.header.Get(name); v != want {
				t.Errorf("%s: %s is %q, want %q", format, name, v, want)
			}
		}
		list, _ := fixed(t, secret('n'), secret('o'))(t.Context())
		if v := r.header.Get("webhook-signature"); v != signature(list, "key-1", fmt.Sprint(now.Unix()), []byte(r.body)) || strings.Count(v, "v1,") != 2 {
			t.Errorf("%s: signature %q", format, v)
		}
		if format == Binary {
			if r.body != `{"by": "u1", "n": 12345678901234567890}` || r.header.Get("ce-subject") != "activity:42" || r.header.Get("ce-correlationid") != "c%201" ||
				r.header.Get("Content-Type") != "application/json" || r.header.Get("ce-sequence") != "3" {
				t.Errorf("binary: %s %v", r.body, r.header)
			}
			continue
		}
		var event map[string]any
		if err := json.Unmarshal([]byte(r.body), &event); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"specversion": "1.0", "id": "0197c2a0-5b1e-7c9a-8f3e-2d1c0b9a8f7e", "source": "https://crm.example/", "type": "activity.completed",
			"subject": "activity:42", "partitionkey": "activity:42", "sequence": "3", "tenant": "acme", "eventversion": "2", "time": "2026-01-02T03:04:05.000006Z", "correlationid": "c 1"} {
			if event[name] != want {
				t.Errorf("%s is %v, want %s", name, event[name], want)
			}
		}
		if !strings.Contains(r.body, `12345678901234567890`) {
			t.Errorf("a number was changed: %s", r.body)
		}
	}
}

func TestAnswersAreJudged(t *testing.T) {
	for _, tc := range []struct {
		name    string
		answer  http.HandlerFunc
		verdict keyline.Verdict
		delay   time.Duration
		code    string
	}{
		{"200", status(200), keyline.VerdictCompleted, 0, ""},
		{"299", status(299), keyline.VerdictCompleted, 0, ""},
		{"302", status(302, "Location", "http://127.0.0.1:1/"), keyline.VerdictRetry, 0, "webhook_status_302"},
		{"400", status(400), keyline.VerdictPermanent, 0, "webhook_status_400"},
		{"404", status(404), keyline.VerdictPermanent, 0, "webhook_status_404"},
		{"408", status(408), keyline.VerdictRetry, 0, "webhook_status_408"},
		{"410", status(410), keyline.VerdictPermanent, 0, "webhook_status_410"},
		{"425", status(425), keyline.VerdictRetry, 0, "webhook_status_425"},
		{"429", status(429), keyline.VerdictRetry, 0, "webhook_status_429"},
		{"429, later", status(429, "Retry-After", "90"), keyline.VerdictSnooze, 90 * time.Second, ""},
		{"429, at once", status(429, "Retry-After", "0"), keyline.VerdictSnooze, time.Second, ""},
		{"429, in a year", status(429, "Retry-After", "31536000"), keyline.VerdictSnooze, time.Hour, ""},
		{"429, in an age", status(429, "Retry-After", "99999999999999999999"), keyline.VerdictSnooze, time.Hour, ""},
		{"429, nonsense", status(429, "Retry-After", "soon"), keyline.VerdictRetry, 0, "webhook_status_429"},
		{"429, a date", status(429, "Retry-After", "Tue, 06 Jan 2026 00:02:00 GMT"), keyline.VerdictSnooze, 2 * time.Minute, ""},
		{"429, before now", status(429, "Retry-After", "Mon, 05 Jan 2026 00:02:00 GMT"), keyline.VerdictSnooze, time.Second, ""},
		{"429, in an age, as a date", status(429, "Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"), keyline.VerdictSnooze, time.Hour, ""},
		{"429, the old date", status(429, "Retry-After", "Tuesday, 06-Jan-26 00:02:00 GMT"), keyline.VerdictSnooze, 2 * time.Minute, ""},
		{"429, before now, as a number", status(429, "Retry-After", "-5"), keyline.VerdictRetry, 0, "webhook_status_429"},
		{"429, a part of a second", status(429, "Retry-After", "1.5"), keyline.VerdictRetry, 0, "webhook_status_429"},
		{"500", status(500), keyline.VerdictRetry, 0, "webhook_status_500"},
		{"503", status(503), keyline.VerdictRetry, 0, "webhook_status_503"},
		{"503, later", status(503, "Retry-After", "30"), keyline.VerdictRetryAfter, 30 * time.Second, "webhook_status_503"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			url, got := endpoint(t, tc.answer)
			s := open(t, Config{URL: url})
			s.clock = clock.NewFake(time.Date(2026, 1, 6, 0, 0, 0, 0, time.UTC))
			err := s.handle(t.Context(), delivery())
			verdict, delay, _ := keyline.Judge(err)
			if verdict != tc.verdict || delay != tc.delay {
				t.Errorf("%v after %s: %v", verdict, delay, err)
			}
			if tc.code != "" && keyline.ErrorCode(err) != tc.code {
				t.Errorf("code %s", keyline.ErrorCode(err))
			}
			if err != nil && (strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), url)) {
				t.Errorf("the error tells: %v", err)
			}
			if r := <-got; r.header.Get("webhook-signature") != "" || r.header.Get("webhook-id") == "" || len(got) != 0 {
				t.Errorf("%v, and %d more requests", r.header, len(got))
			}
		})
	}
}

func TestAnEndpointThatSwitchesProtocolsHoldsNobodyUp(t *testing.T) {
	release := make(chan struct{})
	ended := make(chan struct{})
	url, _ := endpoint(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
		<-release
	})
	t.Cleanup(func() { <-ended })
	s := open(t, Config{URL: url})
	done := make(chan error, 1)
	go func() { done <- s.handle(t.Context(), delivery()) }()
	defer close(release)
	select {
	case err := <-done:
		if verdict, _, _ := keyline.Judge(err); verdict != keyline.VerdictRetry || keyline.ErrorCode(err) != "webhook_status_101" {
			t.Errorf("%v: %v", verdict, err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for the body of an answer that has none")
	}
}

func TestWhatCannotBeSentSaysWhy(t *testing.T) {
	hang := make(chan struct{})
	slow, _ := endpoint(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(hang) })
	never, _ := endpoint(t, status(200))
	check := func(err error, verdict keyline.Verdict, code string) {
		t.Helper()
		if v, _, _ := keyline.Judge(err); v != verdict || keyline.ErrorCode(err) != code {
			t.Errorf("%v %s: %v", v, keyline.ErrorCode(err), err)
		}
		if strings.Contains(fmt.Sprint(err), "127.0.0.1") {
			t.Errorf("the error tells: %v", err)
		}
	}
	check(open(t, Config{URL: slow, Timeout: 50 * time.Millisecond}).handle(t.Context(), delivery()), keyline.VerdictRetry, CodeTimeout)
	check(open(t, Config{URL: "http://127.0.0.1:1/?key=127.0.0.1"}).handle(t.Context(), delivery()), keyline.VerdictRetry, CodeUnreachable)
	check(open(t, Config{URL: never, MaxBody: 10}).handle(t.Context(), delivery()), keyline.VerdictPermanent, CodeTooLarge)
	check(open(t, Config{URL: never, AllowAddresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}).handle(t.Context(), delivery()), keyline.VerdictPermanent, CodeAddress)
	none := func(context.Context) ([][]byte, error) { return nil, nil }
	for _, secrets := range []Secrets{SecretsFromFile("missing"), AllSecrets(), none} {
		check(open(t, Config{URL: never, Secrets: secrets}).handle(t.Context(), delivery()), keyline.VerdictRetry, CodeSecret)
	}
	// A worker that stops is no failure of the endpoint.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := open(t, Config{URL: slow}).handle(ctx, delivery()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The name is looked up by whoever dials, and what it leads to then is what is looked at.
func TestANameIsNoWayAround(t *testing.T) {
	url, got := endpoint(t, status(200))
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	for _, host := range []string{"localhost", "127.0.0.1", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "2130706433", "127.1"} {
		err := open(t, Config{URL: "http://" + host + ":" + port, AllowAddresses: []netip.Prefix{}}).handle(t.Context(), delivery())
		if code := keyline.ErrorCode(err); code != CodeAddress && code != CodeUnreachable && code != CodeName || len(got) > 0 {
			t.Errorf("%s: %v, %d arrived", host, err, len(got))
		}
	}
}

func TestPrivateAddressesAreRefusedInEveryDisguise(t *testing.T) {
	wide := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for text, public := range map[string]bool{
		"93.184.216.34": true, "2606:2800:220:1::1": true, "64:ff9b::5db8:d822": true, "2002:5db8:d822::1": true,
		"127.0.0.1": false, "127.8.8.8": false, "::1": false, "0.0.0.0": false, "0.1.2.3": false, "::": false, "10.0.0.1": false, "172.16.0.1": false, "172.31.255.255": false,
		"192.168.1.1": false, "169.254.1.1": false, "100.64.0.1": false, "198.18.0.1": false, "192.0.2.1": false, "224.0.0.1": false, "255.255.255.255": false, "240.0.0.1": false,
		"fe80::1": false, "fe80::1%eth0": false, "fc00::1": false, "fd12::1": false, "ff02::1": false, "fec0::1": false, "2001:db8::1": false, "2001::1": false,
		"::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:93.184.216.34": true, "::127.0.0.1": false, "64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false,
		"2002:7f00:1::": false, "2002:a00:1::1": false, "169.254.169.254": false, "::ffff:169.254.169.254": false, "fd00:ec2::254": false, "100.100.100.200": false,
	} {
		a := netip.MustParseAddr(text)
		if got := mayDial(a, nil); got != public {
			t.Errorf("%s: %v", text, got)
		}
		isMetadata := strings.Contains(text, "169.254.169.254") || text == "64:ff9b::a9fe:a9fe" || text == "fd00:ec2::254" || text == "100.100.100.200"
		if got := mayDial(a, wide); got == isMetadata {
			t.Errorf("%s with everything allowed: %v", text, got)
		}
		if alone := netip.PrefixFrom(plain(a), plain(a).BitLen()); !mayDial(a, []netip.Prefix{alone}) {
			t.Errorf("%s is refused though it is named alone", text)
		}
	}
	if mayDial(netip.Addr{}, wide) {
		t.Error("no address is allowed")
	}
}

func TestSecretsRotateWithoutARestart(t *testing.T) {
	url, got := endpoint(t, status(200))
	file := filepath.Join(t.TempDir(), "secret")
	write := func(texts ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Join(texts, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOOK_SECRET", secret('e'))
	s := open(t, Config{URL: url, Secrets: AllSecrets(SecretsFromFile(file), SecretsFromEnv("HOOK_SECRET"))})
	for want, texts := range map[int][]string{2: {secret('a')}, 3: {secret('b'), "", secret('a')}} {
		write(texts...)
		if err := s.handle(t.Context(), delivery()); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count((<-got).header.Get("webhook-signature"), "v1,"); n != want {
			t.Errorf("%d signatures, want %d", n, want)
		}
	}
	for _, bad := range []string{"", "whsec_", "whsec_short", strings.TrimPrefix(secret('a'), secretPrefix), secret('a') + "!", "whsec_" + strings.Repeat("A", 120)} {
		if _, err := ParseSecrets(bad); err == nil || len(bad) > 6 && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestAConfigThatMakesNoSenseIsRefusedByName(t *testing.T) {
	secrets := fixed(t, secret('a'))
	for field, cfg := range map[string]Config{
		"URL: is no":     {URL: "https://", Secrets: secrets},
		"URL: must have": {URL: "https://u:p@example.com", Secrets: secrets},
		"URL: must be h": {URL: "ftp://example.com", Secrets: secrets},
		"AllowHTTP":      {URL: "http://example.com", Secrets: secrets},
		"Secrets":        {URL: "https://example.com"},
		"Unsigned":       {URL: "https://example.com", Secrets: secrets, Unsigned: true},
		"Format":         {URL: "https://example.com", Secrets: secrets, Format: "xml"},
		"Source":         {URL: "https://example.com", Secrets: secrets, Source: "\x00"},
		"Headers":        {URL: "https://example.com", Secrets: secrets, Headers: map[string]string{"Webhook-Signature": "x"}},
		"cannot be set":  {URL: "https://example.com", Secrets: secrets, Headers: map[string]string{"X": "a\r\nb"}},
		"Timeout":        {URL: "https://example.com", Secrets: secrets, Timeout: -1},
		"AllowAddresses": {URL: "https://example.com", Secrets: secrets, AllowAddresses: []netip.Prefix{{}}},
	} {
		if _, err := Handler(cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// The example of the specification.
func TestTheSignatureIsThatOfStandardWebhooks(t *testing.T) {
	list, err := ParseSecrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := signature(list, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// What the endpoint does belongs under the run that called it, and the event keeps the trace of its append.
// names answers each question for an IPv4 address with these.
func names(t *testing.T, answer ...[4]byte) *net.Resolver {
	t.Helper()
	var lc net.ListenConfig
	conn, err := lc.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			end := 12 // after the header the name, and then type and class
			for end < n && b[end] != 0 {
				end += int(b[end]) + 1
			}
			out := append([]byte{b[0], b[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, b[12:end+5]...)
			if b[end+2] == 1 {
				out[7] = byte(len(answer))
				for _, a := range answer {
					out = append(append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4), a[:]...)
				}
			}
			_, _ = conn.WriteTo(out, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// One address that may not be dialled, and one that may and is down for now: that is no reason to give the event up.
func TestANameOfWhichOneAddressMayBeDialledIsTriedAgain(t *testing.T) {
	public, private := [4]byte{127, 0, 0, 1}, [4]byte{127, 0, 0, 9}
	for name, tc := range map[string]struct {
		answer  [][4]byte
		verdict keyline.Verdict
		code    string
	}{
		"the private one first": {[][4]byte{private, public}, keyline.VerdictRetry, CodeUnreachable},
		"and last":              {[][4]byte{public, private}, keyline.VerdictRetry, CodeUnreachable},
		"both private":          {[][4]byte{private, {127, 0, 0, 10}}, keyline.VerdictPermanent, CodeAddress},
	} {
		s := open(t, Config{URL: "http://hooks.example.test:1", AllowAddresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
		s.dialer.Resolver = names(t, tc.answer...)
		err := s.handle(t.Context(), delivery())
		if v, _, _ := keyline.Judge(err); v != tc.verdict || keyline.ErrorCode(err) != tc.code {
			t.Errorf("%s: %v %s: %v", name, v, keyline.ErrorCode(err), err)
		}
	}
}

func TestTheTraceGoesOn(t *testing.T) {
	url, got := endpoint(t, status(http.StatusOK))
	d := delivery()
	const appended = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	d.Headers[keyline.HeaderTraceparent], d.Headers[keyline.HeaderTracestate] = appended, "vendor=appended"
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	s := open(t, Config{URL: url})
	for _, tc := range []struct {
		ctx         context.Context
		want, state string
	}{
		{t.Context(), appended, "vendor=appended"},
		{trace.ContextWithSpanContext(t.Context(), span), "00-01000000000000000000000000000000-0200000000000000-01", ""},
	} {
		if err := s.handle(tc.ctx, d); err != nil {
			t.Fatal(err)
		}
		r := <-got
		if v := r.header.Get("traceparent"); v != tc.want || !strings.Contains(r.body, `"traceparent":"`+appended+`"`) {
			t.Errorf("traceparent %q, want %q: %s", v, tc.want, r.body)
		}
		if v := r.header.Get("tracestate"); v != tc.state {
			t.Errorf("tracestate %q, want %q", v, tc.state)
		}
	}
}
