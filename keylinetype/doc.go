// Package keylinetype holds the types that an application sees: keys, events,
// deliveries, a consumer's policies, and the errors that handlers return.
//
// It is a leaf: it imports nothing of Keyline, so that the runtime's parts can
// share these types without importing each other. The root package keyline
// re-exports every name; applications import that one.
package keylinetype
