package api

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/keylinehq/keyline"
)

// Codes of problems that are the API's own, beside those of keyline.Error.
const (
	codeInvalidRequest = "invalid_request"
	codeRateLimited    = "rate_limited"
	codeCrossOrigin    = "cross_origin"
	codeNotJSON        = "not_json"
	codeTooLarge       = "too_large"
	codeNotConfirmed   = "not_confirmed"
	codeTooMany        = "too_many"
	codeInternal       = "internal"
)

// Problem is an error as RFC 9457 has it, with a stable code. It names nothing of
// the database or the host.
type Problem struct {
	Title  string `json:"title" doc:"What the status says."`
	Status int    `json:"status" doc:"The status of the answer."`
	// Code is what programs read.
	Code   string              `json:"code" doc:"Stable; what programs decide by."`
	Detail string              `json:"detail,omitempty" doc:"What is wrong, for people."`
	Errors []*huma.ErrorDetail `json:"errors,omitempty" nullable:"false" doc:"What is wrong with the request, part by part."`

	retryAfter int // seconds; 0: not said
}

// Error implements error.
func (p *Problem) Error() string { return p.Code + ": " + p.Detail }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders implements huma.HeadersError.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="keyline"`)
	}
	return h
}

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

func problem(status int, code, detail string) *Problem {
	return &Problem{Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

// asProblem reads an error of an Operator. What drivers say is for the log: it names hosts, users and
// statements.
func asProblem(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	var e *keyline.Error
	if !errors.As(err, &e) {
		return problem(http.StatusInternalServerError, codeInternal, "something went wrong; the log of the server says what")
	}
	detail := e.Message
	if e.Field != "" {
		detail = e.Field + ": " + detail
	}
	var state interface{ SQLState() string }
	fromServer := errors.As(err, &state)
	switch {
	case e.Code == keyline.CodeUnauthenticated:
		return problem(http.StatusUnauthorized, e.Code, "a token is needed that has neither expired nor been revoked")
	case e.Code == keyline.CodePermissionDenied:
		if fromServer {
			detail = "the database role that this server has may not do that"
		}
		return problem(http.StatusForbidden, e.Code, detail)
	case e.Code == keyline.CodeNotAppliedYet:
		p := problem(http.StatusServiceUnavailable, e.Code, detail)
		p.retryAfter = 1
		return p
	case e.Code == keyline.CodeNotInstalled:
		return problem(http.StatusServiceUnavailable, e.Code, "Keyline is not installed in the database of this server")
	case errors.Is(err, keyline.ErrNotFound):
		return problem(http.StatusNotFound, e.Code, detail)
	case errors.Is(err, keyline.ErrConflict):
		if fromServer && e.Code != keyline.CodeConstraint {
			detail = "the database could not order this beside something else: try again"
		}
		return problem(http.StatusConflict, e.Code, detail)
	case errors.Is(err, keyline.ErrInvalid):
		if fromServer {
			detail = "the database cannot take this value"
		}
		return problem(http.StatusUnprocessableEntity, e.Code, detail)
	case errors.Is(err, keyline.ErrUnavailable), e.Code == keyline.CodeCancelled:
		p := problem(http.StatusServiceUnavailable, e.Code, "the database does not answer in time")
		p.retryAfter = 1
		return p
	}
	return problem(http.StatusInternalServerError, e.Code, "something went wrong; the log of the server says what")
}

// rewrite makes huma's own errors problems with a code.
func rewrite(_ huma.Context, _ string, v any) (any, error) {
	p, ok := v.(*Problem)
	if ok {
		return p, nil
	}
	status, ok := v.(huma.StatusError)
	if !ok {
		return v, nil
	}
	out := problem(status.GetStatus(), codeInvalidRequest, "the request is not what the description of the API says")
	if status.GetStatus() >= http.StatusInternalServerError {
		out.Code, out.Detail = codeInternal, "something went wrong; the log of the server says what"
		return out, nil
	}
	var model *huma.ErrorModel
	if errors.As(status, &model) {
		out.Detail, out.Errors = model.Detail, model.Errors
		for _, e := range out.Errors {
			e.Value = nil // it comes from the caller, and may be large or secret
		}
	}
	return out, nil
}
