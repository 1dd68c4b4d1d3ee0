package api

import "github.com/danielgtaylor/huma/v2"

// Description is the description of a handler's operations.
func Description(h *Handler) *huma.OpenAPI { return h.api.OpenAPI() }

// ScopeExtension is where it says what an operation is about.
const ScopeExtension = scopeExtension
