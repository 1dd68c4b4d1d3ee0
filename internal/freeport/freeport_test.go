package freeport

import (
	"net"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Promise: a port can be listened on, and is none that the kernel gives to somebody else.
// A Jaeger once met a connection on the port that had been chosen for it.
func TestAChosenPortIsNotGivenToAnybodyElse(t *testing.T) {
	given, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	low, high := givenOut()
	if p := given.Addr().(*net.TCPAddr).Port; p < low || p > high {
		t.Fatalf("the kernel gave %d, outside of %d to %d", p, low, high)
	}
	for range 200 {
		port, err := Choose(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if low <= port && port <= high {
			t.Fatalf("%d is in %d to %d", port, low, high)
		}
		l, err := net.Listen("tcp", Addr(port))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}
