// Package doctor is `keyline doctor`: what in the server, the network and the
// installation keeps workers from working well, and how to mend it. It changes nothing.
package doctor
