package main

import (
	"fmt"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
)

var frozen = []scenario{
	{"42a", "a worker is frozen while it sleeps as sentinel", frozenSentinel},
	{"42b", "a worker is frozen under load, again and again", frozenUnderLoad},
	{"42c", "a worker is frozen inside HandleTx", frozenInTx},
}

func frozenSentinel(t *stage) {
	t.open()
	w1 := t.start(spec{Name: "w1"})
	t.append("r", nil)
	t.awaitDone("r", 3, 20*time.Second)
	t.pause(2 * time.Second) // it sleeps, as sentinel: it is alone
	t.start(spec{Name: "w2", Config: keyline.Config{PollInterval: time.Hour}})
	w1.signal(syscall.SIGSTOP)
	for i := range 10 {
		t.append("r", nil)
		t.append(fmt.Sprintf("q%d", i), nil)
	}
	t.awaitDone("r", 33, 20*time.Second)
	t.awaitDone("q%", 30, 20*time.Second)
	t.pause(3 * time.Second)
	t.append("s", nil)
	t.awaitDone("s", 3, 3*time.Second)
	w1.signal(syscall.SIGCONT)
	t.append("s", nil)
	t.awaitDone("s", 6, 10*time.Second)
	t.check(allow{})
}

func frozenUnderLoad(t *stage) {
	t.open()
	w1 := t.start(spec{Name: "w1"})
	t.start(spec{Name: "w2"})
	stop := t.load(15)
	for i := range 8 {
		t.pause(time.Duration(400+37*i) * time.Millisecond)
		w1.signal(syscall.SIGSTOP)
		began := t.house.clock.Mono()
		for range 10 { // appends go through
			t.append(fmt.Sprintf("load%d", i), nil)
		}
		if d := t.house.clock.Mono() - began; d > 2*time.Second {
			t.fail("10 appends beside a frozen worker took %s", d)
		}
		t.pause(time.Duration(500+i%2*3000) * time.Millisecond)
		w1.signal(syscall.SIGCONT)
	}
	t.found["appended_under_load"] = stop()
	t.check(allow{duplicates: 4 * 15 * 3, overlaps: true, within: 2 * time.Minute})
}

func frozenInTx(t *stage) {
	t.open()
	w1 := t.start(spec{Name: "w1", Consumers: []string{"tx"}})
	t.append("r", do{"gate": "g"})
	t.running("r", 1)
	w1.signal(syscall.SIGSTOP)
	t.start(spec{Name: "w2", Consumers: []string{"tx"}})
	t.appendN("r", 3)
	t.append("q", nil)
	t.awaitDone("q", 1, 10*time.Second)
	t.gate("g")
	t.awaitDone("r", 4, 30*time.Second)
	w1.signal(syscall.SIGCONT)
	t.append("r", nil)
	t.awaitDone("r", 5, 30*time.Second)
	t.check(allow{overlaps: true})
}
