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
)

// proxy stands between workers and the server and understands just enough of
// the protocol to cut a connection at the worst moment.
type proxy struct {
	target string
	ln     net.Listener
	group  sync.WaitGroup

	mu     sync.Mutex
	conns  map[*link]struct{}
	marker string // cut at the COMMIT of a transaction that mentions this
	left   int    // so many times
	cuts   int
	refuse bool
}

// link is one connection through the proxy.
type link struct {
	p              *proxy
	client, server net.Conn
	stalled        atomic.Bool // bytes vanish, both ways
	mu             sync.Mutex
	names          map[string]string // prepared statements
	marked         bool
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
		refuse := p.refuse
		p.mu.Unlock()
		server, err := net.Dial("tcp", p.target)
		if err != nil || refuse {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
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
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.p.left > 0 && text != "" && strings.Contains(text, l.p.marker) {
		l.mu.Lock()
		l.marked = true
		l.mu.Unlock()
	}
	return false
}

// answered sees what the server sends.
func (l *link) answered(kind byte, body []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case kind == 'C' && l.marked && strings.HasPrefix(string(body), "COMMIT"):
		l.p.mu.Lock()
		defer l.p.mu.Unlock()
		if l.p.left > 0 {
			l.p.left--
			l.p.cuts++
			return true
		}
	case kind == 'Z' && len(body) == 1 && body[0] == 'I':
		l.marked = false
	}
	return false
}
