// Package freeport chooses a TCP port for a process that is started with it and
// cannot say which one it was given.
//
// Between the choice and the process's own bind anybody may take the port. What
// takes one without asking is the kernel, for an outgoing connection or a
// listener on port 0, and always from one range; so ports here are outside of it.
package freeport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"

	"github.com/keylinehq/keyline/internal/clock"
)

// Ports are chosen from [first, last]: above what services usually have.
const first, last = 15000, 65000

// Choose returns a port on which nobody listens on 127.0.0.1. Choices are random,
// so that processes that choose at once hardly meet.
func Choose(ctx context.Context) (int, error) {
	low, high := givenOut()
	rnd := clock.NewRand(clock.RandomSeed())
	var lc net.ListenConfig
	for range 1000 {
		port := first + rnd.IntN(last-first+1)
		if low <= port && port <= high {
			continue
		}
		l, err := lc.Listen(ctx, "tcp", Addr(port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("look for a free port: %w", err)
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port from %d to %d outside of %d to %d", first, last, low, high)
}

// Addr is the address of a port on 127.0.0.1.
func Addr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// givenOut is the range from which the kernel takes ports. Where it does not say, it
// is the one that IANA names (RFC 6335, section 6), which BSDs have.
func givenOut() (low, high int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &low, &high)
	}
	if err != nil || high-low >= last-first {
		return 49152, 65535
	}
	return low, high
}
