package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

// private are networks that are somebody's own, or nobody's: events are not sent there unless they are allowed. What the standard
// library knows (loopback, private, link-local, multicast) is not repeated.
var private = prefixes(
	"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
	"::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16", "fec0::/10",
)

// metadata are where clouds serve credentials to whoever asks from inside.
var metadata = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("169.254.170.2"), netip.MustParseAddr("169.254.170.23"), netip.MustParseAddr("169.254.0.23"),
	netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("192.0.0.192"), netip.MustParseAddr("168.63.129.16"),
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd00:ec2::23"), netip.MustParseAddr("fd20:ce::254"),
}

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		list[i] = netip.MustParsePrefix(t)
	}
	return list
}

var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
	sixTo4 = netip.MustParsePrefix("2002::/16")
)

// plain is an address as a router takes it: IPv4 in one of its disguises is IPv4.
func plain(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	bytes := a.As16()
	switch {
	case !a.Is6():
		return a
	case nat64.Contains(a):
		return netip.AddrFrom4([4]byte(bytes[12:16]))
	case sixTo4.Contains(a):
		return netip.AddrFrom4([4]byte(bytes[2:6]))
	}
	return a
}

// mayDial reports whether an address may be sent to.
func mayDial(address netip.Addr, allowed []netip.Prefix) bool {
	a := plain(address)
	if !a.IsValid() {
		return false
	}
	if slices.Contains(metadata, a) {
		return slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.IsSingleIP() && p.Addr() == a })
	}
	if slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return true
	}
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	return a.IsGlobalUnicast() && !a.IsPrivate() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !slices.ContainsFunc(private, in)
}

// dialer dials what its guard lets through, which looks at each address after the name was resolved: what a name meant
// when somebody looked is no promise of what it means now.
type dialer struct {
	net.Dialer

	allowed []netip.Prefix
}

// letThrough is what a dial's context has its guard note whether it let any address through.
type letThrough struct{}

func newDialer(timeout time.Duration, allowed []netip.Prefix) *dialer {
	d := &dialer{allowed: allowed}
	d.Timeout, d.ControlContext = timeout, d.guard
	return d
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var passed atomic.Bool
	conn, err := d.DialContext(context.WithValue(ctx, letThrough{}, &passed), network, address)
	if passed.Load() && errors.Is(err, errAddress) {
		// The error is that of the first address. Another may be dialled, and is down for now.
		return nil, errDown
	}
	return conn, err
}

func (d *dialer) guard(ctx context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %w", errAddress, err)
	}
	if !mayDial(at.Addr(), d.allowed) {
		return errAddress
	}
	if passed, ok := ctx.Value(letThrough{}).(*atomic.Bool); ok {
		passed.Store(true)
	}
	return nil
}
