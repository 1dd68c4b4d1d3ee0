// Package core holds the runtime's shared words as Go types, and the interfaces
// by which its parts meet: store writes and reads them, actors decide with
// them, supervisor and listener drive them. It is a leaf beside keylinetype and
// imports no other part of Keyline.
package core
