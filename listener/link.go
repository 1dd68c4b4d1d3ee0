package listener

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"github.com/keylinehq/keyline/internal/clock"
)

const (
	// reconnectMin and reconnectMax are lib/pq's pauses between attempts. The
	// longer one is how long a stop during an outage can take, since lib/pq
	// sleeps through it.
	reconnectMin = 50 * time.Millisecond
	reconnectMax = time.Second
	// probeRetry is the pause after a probe that could not be sent.
	probeRetry = time.Second
)

var errSilent = errors.New("a notification sent to the channel did not arrive: " +
	"is this a transaction pooler, or another database? Set a direct connection for listening")

// link keeps LISTEN up, and knows whether notifications arrive: after every
// (re)connection it sends one to itself, by the way that all of them are sent,
// and believes in nothing before that has come. A LISTEN through a transaction
// pooler succeeds and hears nothing, and an exclusive lock taken through one
// would be left on somebody else's connection.
type link struct {
	channel string
	dialer  *dialer
	clock   clock.Clock
	log     *slog.Logger
	notify  func(context.Context, string) error
	timing  linkTiming

	heard func(payload string)
	// mode reports changes; called from run alone.
	mode func(Mode, string)

	events chan linkEvent
}

type linkTiming struct{ ping, probe, reprobe time.Duration }

type linkEventKind uint8

const (
	linkListening linkEventKind = iota // LISTEN succeeded for the first time
	linkFailed                         // no connection, or LISTEN refused
	linkDown                           // the connection is gone
	linkPinged                         // a ping has been answered, or not
	linkProbed                         // the probe has been sent, or not
)

type linkEvent struct {
	kind  linkEventKind
	err   error
	nonce string // for linkProbed
}

// send hands an event to run, from any goroutine.
func (k *link) send(ctx context.Context, e linkEvent) {
	select {
	case k.events <- e:
	case <-ctx.Done():
	}
}

// run listens until ctx ends, and returns when all of it has ended.
func (k *link) run(ctx context.Context) {
	l := pq.NewDialListener(k.dialer, k.dialer.target.dsn, reconnectMin, reconnectMax, k.callback(ctx))
	s := session{link: k, pq: l, timer: k.clock.NewTimer(time.Hour)}
	s.timer.Stop() // nothing to wait for yet
	s.helpers.Go(func() { s.listen(ctx) })
	open := true
	for open && ctx.Err() == nil {
		select {
		case n, ok := <-l.Notify:
			open = ok
			if ok {
				s.receive(ctx, n)
			}
		case e := <-k.events:
			s.event(ctx, e)
		case <-s.timer.C():
			s.then(ctx)
		case <-ctx.Done():
		}
	}
	s.timer.Stop()
	k.dialer.stop()
	k.dialer.kill()
	if err := l.Close(); err != nil {
		k.log.DebugContext(ctx, "close listen connection", "error", err)
	}
	for range l.Notify { // until lib/pq's goroutine has ended
	}
	s.helpers.Wait()
}

// callback hears of lib/pq's connection, on its goroutine.
func (k *link) callback(ctx context.Context) pq.EventCallbackType {
	return func(e pq.ListenerEventType, err error) {
		switch e {
		case pq.ListenerEventConnected, pq.ListenerEventReconnected:
			k.dialer.established()
		case pq.ListenerEventDisconnected:
			k.send(ctx, linkEvent{kind: linkDown, err: err})
		case pq.ListenerEventConnectionAttemptFailed:
			k.send(ctx, linkEvent{kind: linkFailed, err: err})
		}
	}
}

// session is run's own state.
type session struct {
	*link
	pq      *pq.Listener
	timer   clock.Timer
	then    func(context.Context) // when the timer fires
	helpers sync.WaitGroup

	up      bool   // a probe has come back on this connection
	nonce   string // of the probe that is awaited; "": none
	pinging bool
	told    bool // why it polls has been said
}

// listen begins to LISTEN; lib/pq repeats it after reconnecting. It is repeated
// here where the server refuses, as a standby does.
func (s *session) listen(ctx context.Context) {
	for {
		err := s.pq.Listen(s.channel)
		if err == nil {
			s.send(ctx, linkEvent{kind: linkListening})
			return
		}
		if ctx.Err() != nil {
			return
		}
		s.send(ctx, linkEvent{kind: linkFailed, err: err})
		s.dialer.skip()
		s.dialer.kill()
		if clock.Sleep(ctx, s.clock, reconnectMax) != nil {
			return
		}
	}
}

// receive takes a notification, or nil for a reconnection.
func (s *session) receive(ctx context.Context, n *pq.Notification) {
	switch {
	case n == nil:
		s.probe(ctx)
	case s.nonce != "" && n.Extra == probePrefix+s.nonce:
		s.arrived(ctx)
	default:
		s.heard(n.Extra)
	}
}

func (s *session) arrived(ctx context.Context) {
	s.nonce = ""
	s.after(s.timing.ping, s.ping)
	if s.up {
		return
	}
	s.up = true
	if s.told {
		s.log.InfoContext(ctx, "notifications arrive again")
		s.told = false
	}
	s.mode(Listening, "")
}

func (s *session) event(ctx context.Context, e linkEvent) {
	switch e.kind {
	case linkListening:
		s.probe(ctx)
	case linkFailed:
		s.poll(ctx, "no listen connection; polling", e.err)
	case linkDown:
		s.nonce = "" // what still arrives of the old connection proves nothing
		s.timer.Stop()
		s.poll(ctx, "listen connection lost; polling until it is back", e.err)
	case linkPinged:
		s.pinging = false // a failed ping is followed by linkDown
	case linkProbed:
		switch {
		case e.nonce != s.nonce: // of a connection that is gone
		case e.err != nil:
			s.poll(ctx, "cannot send a notification; polling", e.err)
			s.after(probeRetry, s.probe)
		default:
			s.after(s.timing.probe, s.silence)
		}
	}
}

// poll says once, per time that notifications do not arrive, that they do not.
func (s *session) poll(ctx context.Context, what string, err error) {
	s.up = false
	if !s.told {
		s.told = true
		s.log.WarnContext(ctx, what, "error", err)
	}
	s.mode(Polling, err.Error())
}

// after sets the one timer.
func (s *session) after(d time.Duration, then func(context.Context)) {
	s.then = then
	s.timer.Reset(d)
}

// silence: the probe did not arrive in time. Should it come late, all the
// better: its nonce stays valid until the next one.
func (s *session) silence(ctx context.Context) {
	s.poll(ctx, "notifications do not arrive; polling", errSilent)
	s.after(s.timing.reprobe, s.probe)
}

// probe sends a notification to this link's own channel.
func (s *session) probe(ctx context.Context) {
	nonce := uuid.NewString()
	s.nonce = nonce
	s.timer.Stop()
	s.helpers.Go(func() {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err := s.notify(call, probePrefix+nonce)
		s.send(ctx, linkEvent{kind: linkProbed, err: err, nonce: nonce})
	})
}

// ping makes lib/pq use the connection, which is how a dead one is found. It
// has no deadline of its own: closing the connection ends it.
func (s *session) ping(ctx context.Context) {
	s.after(s.timing.ping, s.ping)
	if s.pinging {
		return
	}
	s.pinging = true
	s.helpers.Go(func() {
		limit, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		defer context.AfterFunc(limit, s.dialer.kill)()
		s.send(ctx, linkEvent{kind: linkPinged, err: s.pq.Ping()})
	})
}
