package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/keylinehq/keyline/examples/crm/crm"
)

// write answers with an activity and its ETag.
func write(w http.ResponseWriter, status int, a crm.Activity) error {
	w.Header().Set("ETag", strconv.Quote(strconv.FormatInt(a.Version, 10)))
	return writeJSON(w, "application/json", status, a)
}

func writeList[T any](w http.ResponseWriter, list []T) error {
	if list == nil {
		list = []T{}
	}
	return writeJSON(w, "application/json", http.StatusOK, list)
}

func writeJSON(w http.ResponseWriter, contentType string, status int, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	// The client is gone where this fails; there is nobody to tell.
	_, _ = w.Write(append(text, '\n'))
	return nil
}

// problem is an answer that is no success, as RFC 9457 writes it. Code is
// stable, Detail is for people.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Code   string `json:"code"`
	Field  string `json:"field,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Error implements error.
func (p *problem) Error() string { return p.Code + ": " + p.Detail }

func badRequest(field, detail string) error {
	return &problem{Status: http.StatusBadRequest, Code: "bad_request", Field: field, Detail: detail}
}

// problemOf says what an error is to the client. What is not the client's
// business has no detail.
func problemOf(err error) *problem {
	var own *problem
	var invalid *crm.InvalidError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &invalid):
		return &problem{Status: http.StatusUnprocessableEntity, Code: "invalid", Field: invalid.Field, Detail: invalid.Message}
	case errors.Is(err, crm.ErrNotFound):
		return &problem{Status: http.StatusNotFound, Code: "not_found", Detail: err.Error()}
	case errors.Is(err, crm.ErrStale):
		return &problem{Status: http.StatusPreconditionFailed, Code: "stale", Detail: err.Error()}
	case errors.Is(err, crm.ErrTransition):
		return &problem{Status: http.StatusConflict, Code: "transition", Detail: err.Error()}
	case errors.Is(err, crm.ErrKeyReused):
		return &problem{Status: http.StatusUnprocessableEntity, Code: "idempotency_key_reused", Detail: err.Error()}
	case errors.Is(err, crm.ErrUnavailable):
		// Nothing was done, or it is not known; the same request may be sent again.
		return &problem{Status: http.StatusServiceUnavailable, Code: "unavailable"}
	}
	return &problem{Status: http.StatusInternalServerError, Code: "internal"}
}

func (p *problem) write(w http.ResponseWriter) {
	p.Title = http.StatusText(p.Status)
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	// Marshalling strings and numbers does not fail.
	_ = writeJSON(w, "application/problem+json", p.Status, p)
}
