package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/keylinehq/keyline"
)

// Codes of the errors, as failures and dead letters keep them.
const (
	CodeStatus      = "webhook_status_" // and the status
	CodeTimeout     = "webhook_timeout"
	CodeUnreachable = "webhook_unreachable"
	CodeName        = "webhook_name"        // it cannot be looked up
	CodeCertificate = "webhook_certificate" // it is not to be believed
	CodeAddress     = "webhook_address_refused"
	CodeTooLarge    = "webhook_too_large"
	CodeSecret      = "webhook_secret"
	CodeEvent       = "webhook_event"
)

// bodyWait is how long the body of an answer is waited for.
const bodyWait = time.Second

// mostSilence is how long at most an HTTP/2 connection may be silent before it is asked for a sign of life, and how long that is waited for.
const mostSilence = 5 * time.Second

// mostPause bounds what an endpoint may ask for by Retry-After.
const mostPause = time.Hour

// Error is why an event was not taken. It holds no URL, and nothing of the answer but its status.
type Error struct {
	// Code is one of the Code constants.
	Code string
	// Status is the answer's, 0 where there was none.
	Status  int
	message string
}

// Error implements error.
func (e *Error) Error() string { return "webhook: " + e.message }

// ErrorCode returns Code.
func (e *Error) ErrorCode() string { return e.Code }

func failed(code, format string, args ...any) *Error {
	return &Error{Code: code, message: fmt.Sprintf(format, args...)}
}

// handle sends one event.
func (s *sender) handle(ctx context.Context, d *keyline.Delivery) error {
	header, body, err := s.request(d)
	if err != nil {
		return keyline.Permanent(failed(CodeEvent, "the event cannot be written: %v", err))
	}
	if int64(len(body)) > s.cfg.MaxBody {
		return keyline.Permanent(failed(CodeTooLarge, "the body has %d bytes, %d are allowed", len(body), s.cfg.MaxBody))
	}
	// The endpoint's spans belong under the one that runs now; the event has that of its append.
	if trace.SpanContextFromContext(ctx).IsValid() {
		header.Del(keyline.HeaderTracestate) // of the other one
	}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header))
	header.Set("webhook-id", d.IdempotencyKey)
	timestamp := strconv.FormatInt(s.clock.Now().Unix(), 10)
	header.Set("webhook-timestamp", timestamp)
	if s.cfg.Secrets != nil {
		secrets, err := s.cfg.Secrets(ctx)
		if err != nil {
			return failed(CodeSecret, "no secret to sign with: %v", err)
		}
		if len(secrets) == 0 {
			return failed(CodeSecret, "no secret to sign with: there is none")
		}
		header.Set("webhook-signature", signature(secrets, d.IdempotencyKey, timestamp, body))
	}
	limited, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(limited, http.MethodPost, s.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return keyline.Permanent(failed(CodeEvent, "the request cannot be made"))
	}
	request.Header = header
	response, err := s.client.Do(request)
	if err != nil {
		return s.unsent(ctx, limited, err)
	}
	defer func() { _ = response.Body.Close() }()
	// An answer that switches protocols has the bare connection for its body, which no context ends.
	if response.StatusCode != http.StatusSwitchingProtocols {
		// So that the connection can be used again. It is not worth waiting for: the status is the answer.
		late := s.clock.AfterFunc(bodyWait, cancel)
		defer late.Stop()
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, mostAnswer))
	}
	return s.judge(response)
}

// unsent reads an error that is no answer.
func (s *sender) unsent(ctx, limited context.Context, err error) error {
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // the worker stops, or the consumer's own time is over
	case errors.Is(err, errAddress):
		return keyline.Permanent(failed(CodeAddress, "the endpoint's name leads to an address that is private and not allowed"))
	case limited.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return failed(CodeTimeout, "no answer within %s", s.cfg.Timeout)
	}
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &name):
		return failed(CodeName, "the endpoint's name cannot be looked up")
	case errors.As(err, &certificate):
		return failed(CodeCertificate, "the endpoint's certificate %s", disbelief(certificate.Err))
	}
	return failed(CodeUnreachable, "the endpoint cannot be reached")
}

// disbelief says what is wrong with a certificate, without what it holds.
func disbelief(err error) string {
	var (
		host    x509.HostnameError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &host):
		return "is another host's"
	case errors.As(err, &unknown):
		return "is signed by nobody who is trusted here"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "has expired, or is not valid yet"
	}
	return "is not valid"
}

// judge reads an answer.
func (s *sender) judge(r *http.Response) error {
	status := r.StatusCode
	if status >= 200 && status < 300 {
		return nil
	}
	e := failed(CodeStatus+strconv.Itoa(status), "the endpoint answered %d %s", status, http.StatusText(status))
	e.Status = status
	pause, asked := s.retryAfter(r.Header.Get("Retry-After"))
	switch {
	case status == http.StatusTooManyRequests && asked:
		return keyline.Snooze(pause)
	case status == http.StatusServiceUnavailable && asked:
		return keyline.RetryAfter(e, pause)
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return e
	case status >= 400 && status < 500:
		return keyline.Permanent(e)
	}
	return e
}

// retryAfter reads the header: seconds, or a date. It is a second at least, so that nobody makes a worker spin, and an hour at most.
func (s *sender) retryAfter(value string) (time.Duration, bool) {
	if value == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(value, 10, 31)
	if errors.Is(err, strconv.ErrRange) {
		return mostPause, true
	}
	if err == nil {
		return min(max(time.Duration(n)*time.Second, time.Second), mostPause), true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(s.clock.Now()), time.Second), mostPause), true
}
