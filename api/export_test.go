package api

import (
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// Description is the description of a handler's operations.
func Description(h *Handler) *huma.OpenAPI { return h.api.OpenAPI() }

// ScopeExtension is where it says what an operation is about.
const ScopeExtension = scopeExtension

// SetBodyTimeout changes how long a request's body may take to come.
func SetBodyTimeout(h *Handler, d time.Duration) { h.bodyTimeout = d }

// SetWriteTimeout changes how long a piece of an answer may take to be taken.
func SetWriteTimeout(h *Handler, d time.Duration) { h.writeTimeout = d }
