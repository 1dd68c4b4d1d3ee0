// Package pgdev runs a private PostgreSQL server for the demo, for development
// and for tests, from whatever server binaries the machine has.
//
// A server listens on a Unix socket in a directory of its own (and on a
// loopback port if asked to), runs as an unprivileged account when the process
// is root (initdb refuses root), and ends with the process that started it,
// even if that is killed with SIGKILL: on Linux the kernel signals it
// (Pdeathsig), and everywhere a small shell process holds the other end of a
// pipe and, when that breaks, stops the server and removes what was temporary.
//
// Unless Options.Durable is set, the server forgoes everything that protects
// data from a power cut. Initializing a cluster takes about a second, starting
// one about 50 ms.
package pgdev
