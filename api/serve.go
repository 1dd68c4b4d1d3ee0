package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/keylinehq/keyline"
)

// The bounds of a request.
const (
	mostBody    = 64 << 10
	bodyTimeout = 10 * time.Second
	// writeTimeout is how long a piece of an answer may take to be taken, and writePiece how long a piece is.
	writeTimeout = 10 * time.Second
	writePiece   = 64 << 10
)

// session is a request whose bearer is known.
type session struct {
	keyline.Operator
	token  keyline.Token
	secret string
}

type sessionKey struct{}

func sessionOf(ctx context.Context) *session {
	s, _ := ctx.Value(sessionKey{}).(*session)
	return s
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	// Whoever announces a body and sends none holds the connection until a deadline ends it, known or not: the server reads
	// what is left of it before it answers. The deadline stays until all of it is here.
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(h.clock.Now().Add(h.bodyTimeout))
	}
	out := h.bound(w)
	if r.ProtoMajor == 1 {
		out.begin() // the server may have to say that it goes on with a body, and the deadline of the answer before is still there
	}
	defer out.last()
	if r.URL.Path == "/livez" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		header.Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(out, "ok\n")
		return
	}
	r, p := h.admit(w, r) // the server's own: it is told of a body that is too large
	if p != nil {
		writeProblem(out, p)
		return
	}
	out.end()                                            // acts wait, and nothing is written meanwhile
	if at := r.URL.EscapedPath(); at != path.Clean(at) { // which a ServeMux would redirect, without the prefix that it is mounted under
		writeProblem(out, problem(http.StatusNotFound, keyline.CodeNotFound, "there is no such path"))
		return
	}
	if _, pattern := h.mux.Handler(r); pattern == "" {
		refusal := &refusal{header: http.Header{}, status: http.StatusNotFound}
		h.mux.ServeHTTP(refusal, r)
		p := problem(http.StatusNotFound, keyline.CodeNotFound, "there is no such path")
		if allow := refusal.header.Get("Allow"); refusal.status == http.StatusMethodNotAllowed && allow != "" {
			header.Set("Allow", allow)
			p = problem(http.StatusMethodNotAllowed, codeInvalidRequest, "the path knows other methods")
		}
		writeProblem(out, p)
		return
	}
	h.mux.ServeHTTP(out, r)
}

// bounded is an answer of which each piece has to be taken in time: who asks and reads nothing would hold the connection for ever, and
// the server's end. A deadline for all of it would end acts that wait, and streams; so would, over HTTP/2, one that stays between two pieces.
type bounded struct {
	http.ResponseWriter
	h       *Handler
	control *http.ResponseController
	own     time.Time // a deadline of the handler's own, such as a stream has
}

func (h *Handler) bound(w http.ResponseWriter) *bounded {
	return &bounded{ResponseWriter: w, h: h, control: http.NewResponseController(w)}
}

// begin says that what is written from now on has to be taken in time, end that nothing is written for the time being.
func (b *bounded) begin() {
	by := b.h.clock.Now().Add(b.h.writeTimeout)
	if !b.own.IsZero() && b.own.Before(by) {
		by = b.own
	}
	_ = b.control.SetWriteDeadline(by)
}

func (b *bounded) end() { _ = b.control.SetWriteDeadline(time.Time{}) }

// last is begin for what the server has left to write when the handler has returned.
func (b *bounded) last() {
	b.own = time.Time{}
	b.begin()
}

// Write implements http.ResponseWriter.
func (b *bounded) Write(text []byte) (n int, err error) {
	defer b.end()
	for {
		b.begin()
		piece := text[n:min(n+writePiece, len(text))]
		wrote, err := b.ResponseWriter.Write(piece)
		if n += wrote; err != nil || n == len(text) {
			return n, err
		}
	}
}

// Flush implements http.Flusher.
func (b *bounded) Flush() { _ = b.FlushError() }

// FlushError is Flush for an http.ResponseController.
func (b *bounded) FlushError() error {
	b.begin()
	defer b.end()
	return b.control.Flush()
}

// SetWriteDeadline takes a deadline of the handler's own, which holds where it is the earlier one.
func (b *bounded) SetWriteDeadline(by time.Time) error {
	b.own = by
	return nil
}

// Unwrap gives an http.ResponseController the rest.
func (b *bounded) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// admit finds out whose request it is and reads its body, before anything else looks at either.
func (h *Handler) admit(w http.ResponseWriter, r *http.Request) (*http.Request, *Problem) {
	// A browser that another site sends here has no token to show, since there are no cookies. It is
	// refused all the same, so that nobody has to rely on that.
	if err := h.origins.Check(r); err != nil {
		return r, problem(http.StatusForbidden, codeCrossOrigin, "requests of other sites are refused")
	}
	secret, ok := bearer(r)
	if !ok {
		return r, h.failed(r)
	}
	o, token, err := h.gate.Open(r.Context(), secret)
	if errors.Is(err, &keyline.Error{Code: keyline.CodeUnauthenticated}) {
		return r, h.failed(r)
	}
	if err != nil {
		h.cfg.Logger.WarnContext(r.Context(), "a token could not be looked up", "error", err)
		return r, asProblem(err)
	}
	if !h.limits.token(token.ID) {
		return r, tooFast()
	}
	if p := readQuery(r); p != nil {
		return r, p
	}
	if r, p := h.readBody(w, r); p != nil {
		return r, p
	}
	ctx := context.WithValue(r.Context(), sessionKey{}, &session{o, token, secret})
	return r.WithContext(ctx), nil
}

func tooFast() *Problem {
	p := problem(http.StatusTooManyRequests, codeRateLimited, "too many requests: wait a moment")
	p.retryAfter = 1
	return p
}

// failed is the answer to who has no token, or none that lives.
func (h *Handler) failed(r *http.Request) *Problem {
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		address = r.RemoteAddr
	}
	if !h.limits.failure(address) {
		return tooFast()
	}
	return asProblem(&keyline.Error{Code: keyline.CodeUnauthenticated})
}

// bearer is the one token that a request carries.
func bearer(r *http.Request) (string, bool) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, secret, ok := strings.Cut(values[0], " ")
	return strings.TrimSpace(secret), ok && strings.EqualFold(scheme, "Bearer")
}

// readBody reads a request's body whole: afterwards the connection has no deadline that could end a handler that waits.
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) (*http.Request, *Problem) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions {
		r.Body = http.NoBody
		return r, nil
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return r, problem(http.StatusUnsupportedMediaType, codeNotJSON, "a request that changes something is application/json")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return r, problem(http.StatusRequestEntityTooLarge, codeTooLarge, "the body is too large")
	case err != nil:
		return r, problem(http.StatusBadRequest, codeInvalidRequest, "the body could not be read")
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if name, twice := givenTwice(body); twice {
		return r, problem(http.StatusUnprocessableEntity, codeInvalidRequest, "the body has "+strconv.Quote(name)+" twice")
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return r, nil
}

func writeProblem(w http.ResponseWriter, p *Problem) {
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", p.ContentType(""))
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// refusal takes in what a ServeMux says where it knows no handler.
type refusal struct {
	header http.Header
	status int
}

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) Write(b []byte) (int, error) { return len(b), nil }
func (r *refusal) WriteHeader(status int)      { r.status = status }
