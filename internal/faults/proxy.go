package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// proxy stands between workers and the server and understands just enough of
// the protocol to cut a connection at the worst moment.
type proxy struct {
	ln    net.Listener
	group sync.WaitGroup

	mu     sync.Mutex
	target string
	conns  map[*link]struct{}
	marker string // cut at the COMMIT of a transaction that mentions this
	left   int    // so many times
	cuts   int
	refuse bool
	after  bool           // refuse new connections from a cut on
	trap   *trap          // for the next transaction that fits
	traps  []*trap        // all there were
	seen   map[string]int // statements that mention a key
}

// step is a place in a transaction of one statement.
type step string

const (
	beforeStatement step = "before its statement"
	duringReply     step = "while it is sent its rows" // a row that is larger than what a link keeps
	beforeCommit    step = "after its statement, before its COMMIT"
	beforeReply     step = "after its COMMIT, before the reply"
)

// trap stops one transaction at a step.
type trap struct {
	marker  string
	at      step
	skip    int // so many that fit go by
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
	cut     bool  // when it opens, instead of going on
	next    *trap // is set once somebody is in this one
}

// holds waits until somebody is in the trap.
func (t *trap) holds(s *stage, within time.Duration) bool {
	timer := s.house.clock.NewTimer(within)
	defer timer.Stop()
	select {
	case <-t.reached:
		return true
	case <-timer.C():
		return false
	}
}

// release lets what is in the trap go on.
func (t *trap) release() { t.once.Do(func() { close(t.open) }) }

// unset takes a trap away that nobody has come to.
func (p *proxy) unset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trap = nil
}

// setTrap sets a trap for the next transaction that fits, which is released where it is to hold nobody.
func (p *proxy) setTrap(t *trap, released bool) *trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trap = t
	for ; t != nil; t = t.next {
		t.reached, t.open = make(chan struct{}), make(chan struct{})
		if released {
			t.release()
		}
		p.traps = append(p.traps, t)
	}
	return p.trap
}

// cutBefore cuts the connection that is about to send a statement that mentions marker, once.
func (p *proxy) cutBefore(marker string) *trap {
	return p.setTrap(&trap{marker: marker, at: beforeStatement, cut: true}, true)
}

// cutTwiceBefore cuts the next such connection, too, and is about that one.
func (p *proxy) cutTwiceBefore(marker string) *trap {
	second := &trap{marker: marker, at: beforeStatement, cut: true}
	p.setTrap(&trap{marker: marker, at: beforeStatement, cut: true, next: second}, true)
	return second
}

// take gives the trap to whoever is at its step.
func (p *proxy) take(at step, fits func(*trap) bool) *trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.trap; t != nil && t.at == at && fits(t) {
		if t.skip > 0 {
			t.skip--
			return nil
		}
		p.trap = t.next
		return t
	}
	return nil
}

// fall waits in a trap and says whether the connection is to be cut.
func (t *trap) fall() bool {
	if t == nil {
		return false
	}
	close(t.reached)
	<-t.open
	return t.cut
}

// count begins to count the statements that mention a key; counted is how many there have been.
func (p *proxy) count(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == nil {
		p.seen = map[string]int{}
	}
	p.seen[key] = 0
}

func (p *proxy) counted(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[key]
}

// narrow is how many bytes a link keeps, each way that the server's answers go.
const narrow = 64 << 10

// link is one connection through the proxy.
type link struct {
	p              *proxy
	client, server net.Conn
	stalled        atomic.Bool // bytes vanish, both ways
	mu             sync.Mutex
	names          map[string]string // prepared statements
	marked         bool
	inTrap         *trap // set for this transaction
}

// newProxy stands before the scenario's server and returns the URL to use.
func (t *stage) newProxy() (*proxy, string) { return t.newProxyOn("127.0.0.1:0") }

func (t *stage) newProxyOn(addr string) (*proxy, string) {
	u, err := url.Parse(t.server.TCPURL(t.name))
	t.must(err, "read a URL")
	ln, err := net.Listen("tcp", addr)
	t.must(err, "listen")
	p := &proxy{target: u.Host, ln: ln, conns: map[*link]struct{}{}}
	p.group.Go(p.accept)
	t.onEnd(p.close)
	u.Host = ln.Addr().String()
	return p, u.String()
}

func (p *proxy) close() {
	_ = p.ln.Close()
	p.mu.Lock()
	p.trap = nil
	for _, t := range p.traps {
		t.release()
	}
	p.mu.Unlock()
	p.cutAll()
	p.group.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse, target := p.refuse, p.target
		p.mu.Unlock()
		server, err := net.Dial("tcp", target)
		if err != nil || refuse {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
		// Else the kernel takes megabytes off a server whose client reads nothing.
		_ = client.(*net.TCPConn).SetWriteBuffer(narrow)
		_ = server.(*net.TCPConn).SetReadBuffer(narrow)
		l := &link{p: p, client: client, server: server, names: map[string]string{}}
		p.mu.Lock()
		p.conns[l] = struct{}{}
		p.mu.Unlock()
		p.group.Go(func() { l.pump(client, server, l.asked) })
		p.group.Go(func() { l.pump(server, client, l.answered) })
	}
}

// cutAfterCommit cuts the next n connections whose transaction mentions marker,
// when its COMMIT has been carried out and before the client hears of it.
func (p *proxy) cutAfterCommit(marker string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marker, p.left = marker, n
}

func (p *proxy) cutsMade() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

func (p *proxy) cutAll() {
	for _, l := range p.links() {
		l.cut()
	}
}

// stallAll makes all that goes through the present connections vanish, without
// an end of them being seen by anybody. New ones work.
func (p *proxy) stallAll() int {
	links := p.links()
	for _, l := range links {
		l.stalled.Store(true)
	}
	return len(links)
}

func (p *proxy) refuseNew(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = yes
}

// leadTo has new connections go to another server.
func (p *proxy) leadTo(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = host
}

func (p *proxy) links() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*link
	for l := range p.conns {
		list = append(list, l)
	}
	return list
}

func (l *link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
	l.p.mu.Lock()
	delete(l.p.conns, l)
	l.p.mu.Unlock()
}

// pump passes messages on until an end or a cut.
func (l *link) pump(from, to net.Conn, see func(kind byte, body []byte) (cut bool)) {
	defer func() {
		if !l.stalled.Load() { // the end of a stalled one is not seen either
			l.cut()
		}
	}()
	first := from == l.client
	for {
		head := make([]byte, 5)
		if first { // the startup message has no kind
			head = head[:4]
		}
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
		body := make([]byte, size)
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		if !first && see(head[0], body) {
			return
		}
		first = false
		if l.stalled.Load() {
			continue
		}
		if _, err := to.Write(append(head, body...)); err != nil {
			return
		}
	}
}

// asked sees what the client sends.
func (l *link) asked(kind byte, body []byte) bool {
	var text string
	switch kind {
	case 'Q':
		text = string(body)
	case 'P':
		name, query, _ := bytes.Cut(body, []byte{0})
		query, _, _ = bytes.Cut(query, []byte{0})
		l.names[string(name)] = string(query)
	case 'B':
		_, rest, _ := bytes.Cut(body, []byte{0})
		name, _, _ := bytes.Cut(rest, []byte{0})
		text = l.names[string(name)]
	}
	if text == "" {
		return false
	}
	mentions := func(t *trap) bool { return strings.Contains(text, t.marker) }
	if l.p.take(beforeStatement, mentions).fall() {
		return true
	}
	l.p.mu.Lock()
	for key := range l.p.seen {
		if strings.Contains(text, key) {
			l.p.seen[key]++
		}
	}
	marked := l.p.left > 0 && strings.Contains(text, l.p.marker)
	l.p.mu.Unlock()
	held := l.p.take(beforeCommit, mentions)
	for _, at := range []step{duringReply, beforeReply} {
		if held == nil {
			held = l.p.take(at, mentions)
		}
	}
	l.mu.Lock()
	l.marked = l.marked || marked
	if strings.HasPrefix(text, "begin") {
		l.inTrap = nil // the next transaction's steps are not those of the statement that the trap was for
	}
	if held != nil {
		l.inTrap = held
	}
	here := l.inTrap
	if text = strings.Trim(text, "\x00"); here == nil || here.at != beforeCommit || !strings.EqualFold(text, "commit") {
		here = nil
	} else {
		l.inTrap = nil
	}
	l.mu.Unlock()
	return here.fall()
}

// answered sees what the server sends.
func (l *link) answered(kind byte, body []byte) bool {
	commit := kind == 'C' && strings.HasPrefix(string(body), "COMMIT")
	l.mu.Lock()
	marked, held := l.marked, l.inTrap
	switch {
	case commit && held != nil && held.at == beforeReply,
		kind == 'D' && len(body) > narrow && held != nil && held.at == duringReply:
		l.inTrap = nil
	case kind == 'Z' && len(body) == 1 && body[0] == 'I':
		l.marked = false
		held = nil
	default:
		held = nil
	}
	l.mu.Unlock()
	if held.fall() {
		return true
	}
	if !commit || !marked {
		return false
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.p.left == 0 {
		return false
	}
	l.p.left--
	l.p.cuts++
	l.p.refuse = l.p.refuse || l.p.after
	return true
}
