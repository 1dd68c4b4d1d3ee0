package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
)

// Format is how an event is put into a request.
type Format string

// The formats.
const (
	// Structured puts the whole CloudEvent into the body, so that the signature is about all of it (default).
	Structured Format = "structured"
	// Binary puts the payload into the body, and the rest into headers, which no signature is about.
	Binary Format = "binary"
)

// Defaults of a Config.
const (
	DefaultTimeout = 15 * time.Second
	DefaultMaxBody = 1 << 20
	DefaultSource  = "urn:keyline"
)

// mostAnswer is how much of an answer is read, so that the connection can be used again. None of it is kept.
const mostAnswer = 64 << 10

// Config is one endpoint.
type Config struct {
	// URL is where to send. Required: https, or with AllowHTTP http; without a user or a fragment.
	URL string
	// AllowHTTP lets events travel unencrypted.
	AllowHTTP bool
	// Format is Structured or Binary; "" means Structured.
	Format Format
	// Source is the CloudEvents attribute, a URI reference. Default "urn:keyline".
	Source string
	// Secrets are asked for each request; it is signed with each of them, so that a receiver can go from one to the next. nil: no
	// signature, which Unsigned has to say. Where they are asked and there is none, nothing is sent.
	Secrets  Secrets
	Unsigned bool
	// Timeout is how long one request may take as a whole. Default 15 s.
	Timeout time.Duration
	// Headers are sent too. They cannot be those that this package sends.
	Headers map[string]string
	// MaxBody is how many bytes a request's body may have. Default 1 MiB.
	MaxBody int64
	// AllowAddresses are networks that are sent to though they are private. Those of clouds' metadata services are meant only where they are named
	// alone, as a /32 or /128.
	AllowAddresses []netip.Prefix
}

// sender is an endpoint that is ready.
type sender struct {
	cfg    Config
	client *http.Client
	dialer *dialer
	clock  clock.Clock
}

// Handler makes a consumer's Handle. The error names the field that is wrong.
//
// A 2xx is success. 429 with Retry-After is tried again then, uncharged, within an hour; 503 with it then, charged.
// Other 4xx but 408, 425 and 429 are permanent, and so are addresses that are refused and bodies that are too large. All else
// is an error like any other, redirects too: they are not followed. Errors hold nothing of the answer, and no URL.
func Handler(cfg Config) (func(context.Context, *keyline.Delivery) error, error) {
	s, err := newSender(cfg)
	if err != nil {
		return nil, err
	}
	return s.handle, nil
}

func newSender(cfg Config) (*sender, error) {
	wrong := func(field, format string, args ...any) (*sender, error) {
		return nil, fmt.Errorf("webhook: %s: %s", field, fmt.Sprintf(format, args...))
	}
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		return wrong("URL", "is no URL with a host") // without its text: it may hold a secret
	case u.User != nil || u.Fragment != "":
		return wrong("URL", "must have neither a user nor a fragment")
	case u.Scheme != "https" && u.Scheme != "http":
		return wrong("URL", "must be https")
	case u.Scheme == "http" && !cfg.AllowHTTP:
		return wrong("URL", "must be https, unless AllowHTTP says otherwise")
	case cfg.Timeout < 0 || cfg.MaxBody < 0:
		return wrong("Timeout and MaxBody", "must not be negative")
	case (cfg.Secrets == nil) != cfg.Unsigned:
		return wrong("Secrets", "are required, unless Unsigned says that nothing is signed, and then there are none")
	}
	switch cfg.Format {
	case "":
		cfg.Format = Structured
	case Structured, Binary:
	default:
		return wrong("Format", "must be %q or %q", Structured, Binary)
	}
	if cfg.Source == "" {
		cfg.Source = DefaultSource
	}
	if _, err := url.Parse(cfg.Source); err != nil || attribute(cfg.Source) != cfg.Source {
		return wrong("Source", "is no URI reference")
	}
	for name, value := range cfg.Headers {
		if !headerName.MatchString(name) || strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r == 0x7F }) >= 0 || own(name) {
			return wrong("Headers", "%q cannot be set", name)
		}
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = DefaultMaxBody
	}
	if slices.ContainsFunc(cfg.AllowAddresses, func(p netip.Prefix) bool { return !p.IsValid() }) {
		return wrong("AllowAddresses", "holds what is no network")
	}
	s := &sender{cfg: cfg, clock: clock.Real()}
	s.dialer = newDialer(cfg.Timeout, cfg.AllowAddresses)
	silence := min(cfg.Timeout, mostSilence)
	s.client = &http.Client{
		Transport: &http.Transport{
			// No proxy: what is dialled is what is checked.
			DialContext: s.dialer.dial, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
			TLSHandshakeTimeout: cfg.Timeout, MaxResponseHeaderBytes: mostAnswer, DisableCompression: true,
			// A request that is given up leaves its HTTP/2 connection as it is, dead or not.
			HTTP2: &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: silence},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s, nil
}

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

// own reports whether a header is one that this package, or HTTP itself, sends.
func own(name string) bool {
	name = strings.ToLower(name)
	for _, prefix := range []string{"webhook-", "ce-", "keyline-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains([]string{"content-type", "content-length", "host", "idempotency-key", "user-agent", "traceparent", "tracestate", "connection",
		"transfer-encoding", "te", "trailer", "upgrade", "expect"}, name)
}

// errAddress is what the guard refuses with; errDown stands for that where another address of the name was let through.
var (
	errAddress = errors.New("the address is private")
	errDown    = errors.New("the address that may be dialled cannot be reached")
)
