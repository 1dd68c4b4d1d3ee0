package main

import (
	"fmt"
	"time"

	"github.com/keylinehq/keyline"
)

var handBacks = []scenario{
	{"38", "a hand-back with a late due time races appends", lateHandBack},
	{"41", "a sibling's handler runs for long", longSibling},
}

func lateHandBack(t *stage) {
	t.open()
	t.start(spec{Name: "w1", Consumers: []string{"a", "b"}, Delay: 20 * time.Second, Attempts: 3, Config: keyline.Config{PollInterval: time.Hour}})
	for i := range 40 {
		r := fmt.Sprintf("r%d", i)
		t.append(r, do{"first": 1, "only": "a"})
		t.pause(time.Duration(i*3) * time.Millisecond) // at every moment of the failure, the flush and the hand-back
		t.append(r, nil)
		t.eventually("the sibling gets the event at once", 5*time.Second, func() bool {
			return t.number("select count(*) from crm.delivered_log where mark = 'done' and consumer = 'b' and record_key = $1", r) == 2
		})
	}
	t.check(allow{})
}

func longSibling(t *stage) {
	t.open()
	t.start(spec{Name: "w1"})
	t.append("r", do{"gate": "g", "only": "a"})
	t.append("q", do{"gate": "g", "only": "tx"})
	t.running("r", 1)
	t.running("q", 1)
	t.pause(5 * time.Second)
	for i := range 5 {
		t.append("r", nil)
		t.append("q", nil)
		t.eventually("the siblings get the event within the poll interval", 3*time.Second, func() bool {
			return t.done("r") >= 2*(i+2) && t.done("q") >= 2*(i+2)
		})
		t.pause(700 * time.Millisecond)
	}
	t.gate("g")
	t.check(allow{})
}
