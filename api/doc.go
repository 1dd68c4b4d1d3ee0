// Package api serves what operators see and do over HTTP: the same
// keyline.Operator that the command line is made of, behind tokens.
//
// New makes an http.Handler that any program can serve; `keyline api` is such a
// program. openapi.yaml is its description, and docs/api.md the way in.
package api
