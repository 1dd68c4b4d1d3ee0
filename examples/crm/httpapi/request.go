package httpapi

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/examples/crm/crm"
)

// The headers that the API reads.
const (
	HeaderOrganization   = "X-Organization"
	HeaderActor          = "X-Actor"
	HeaderCorrelationID  = "X-Correlation-ID"
	HeaderRequestID      = "X-Request-ID"
	HeaderIdempotencyKey = "Idempotency-Key"
	HeaderIfMatch        = "If-Match"
)

const maxBody = 64 << 10

// requestOf reads what every operation needs from the headers.
func requestOf(r *http.Request) (crm.Request, error) {
	organization, err := organizationOf(r)
	if err != nil {
		return crm.Request{}, err
	}
	c := crm.Request{
		Organization: organization, Actor: r.Header.Get(HeaderActor), IdempotencyKey: r.Header.Get(HeaderIdempotencyKey),
		CorrelationID: r.Header.Get(HeaderCorrelationID), CausationID: r.Header.Get(HeaderRequestID),
	}
	if c.Actor == "" {
		return c, badRequest(HeaderActor, "is missing")
	}
	// Without any, this request is what all that follows belongs to.
	if c.CausationID == "" {
		c.CausationID = uuid.NewString()
	}
	if c.CorrelationID == "" {
		c.CorrelationID = c.CausationID
	}
	if tag := r.Header.Get(HeaderIfMatch); tag != "" && tag != "*" {
		version, err := strconv.ParseInt(strings.Trim(tag, `"`), 10, 64)
		if err != nil || version < 1 {
			return c, badRequest(HeaderIfMatch, `must be an ETag of this API, such as "3"`)
		}
		c.IfVersion = version
	}
	return c, nil
}

func organizationOf(r *http.Request) (string, error) {
	organization := r.Header.Get(HeaderOrganization)
	if organization == "" {
		return "", badRequest(HeaderOrganization, "is missing")
	}
	return organization, nil
}

func idOf(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return id, crm.ErrNotFound
	}
	return id, nil
}

// read decodes the body; an empty one is an empty object.
func read(w http.ResponseWriter, r *http.Request, body any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	switch err := decoder.Decode(body); {
	case errors.Is(err, io.EOF):
		return nil
	case errors.As(err, new(*http.MaxBytesError)):
		return &problem{Status: http.StatusRequestEntityTooLarge, Code: "too_large", Detail: "the body is too large"}
	case err != nil:
		return badRequest("body", "is not the JSON that belongs here: "+err.Error())
	}
	if decoder.More() {
		return badRequest("body", "has something after its JSON")
	}
	return nil
}
