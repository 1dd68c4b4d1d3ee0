package delivery_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/keylinehq/keyline/actors/delivery"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// history is what one machine was told, and what it answered, in the order in which it was. Zero values are left out.
type history struct {
	Seed     uint64         `json:"seed"`
	Registry registryRecord `json:"registry"`
	Loaded   core.Loaded    `json:"loaded"`
	Options  optionsRecord  `json:"options"`
	// First are the effects of the claim; Steps what came then.
	First []json.RawMessage `json:"first"`
	Steps []step            `json:"steps"`
}

type optionsRecord struct {
	Now         time.Time
	CrashBudget int
	LoadLimit   int
}

// registryRecord is a registry without its lookups.
type registryRecord struct {
	Epoch         int64
	Ordering      keylinetype.Ordering
	Consumers     []core.Consumer
	InternalTypes map[string]bool
}

func recordOf(reg *core.Registry) registryRecord {
	r := registryRecord{Epoch: reg.Epoch, Ordering: reg.Ordering, InternalTypes: reg.InternalTypes}
	for _, c := range reg.Consumers {
		r.Consumers = append(r.Consumers, *c)
	}
	return r
}

func (r registryRecord) registry() *core.Registry {
	var list []*core.Consumer
	for i := range r.Consumers {
		list = append(list, &r.Consumers[i])
	}
	return core.NewRegistry(r.Epoch, r.Ordering, list, r.InternalTypes)
}

// step is one message, what chance said meanwhile, and the effects.
type step struct {
	At     time.Time         `json:"at"`
	Kind   string            `json:"kind"`
	In     json.RawMessage   `json:"in,omitempty"`
	Random []float64         `json:"random,omitempty"`
	Out    []json.RawMessage `json:"out,omitempty"`
}

// The messages that hold what JSON cannot: works, which are meant by the number of their Start, errors and registries.
type (
	endedRecord struct {
		Start             int
		Err               *errorRecord
		Stack             string
		Cancelled, Fenced bool
		Booked            *core.Booking
	}
	errorRecord struct {
		Verdict keylinetype.Verdict
		Delay   time.Duration
		Text    string
	}
	notStartedRecord struct {
		Start int
		Until time.Time
	}
	reloadedRecord struct {
		Registry registryRecord
		Loaded   core.Loaded
	}
	// startRecord is a Start effect without what the registry and the events say already.
	startRecord struct {
		Consumer    int32
		Seqs        []int64
		Attempt     int
		Redelivered bool
		Checkpoint  core.Checkpoint
		Fence       int64
		Dead        *core.DeadRetry
		Replay      bool
	}
)

func kind(v any) string { return reflect.Indirect(reflect.ValueOf(v)).Type().Name() }

// kinds are all messages that there are.
var kinds = []delivery.Message{&delivery.Ended{}, delivery.NotStarted{}, &delivery.Flushed{}, delivery.EventsLoaded{}, delivery.Reloaded{},
	delivery.News{}, delivery.RegistryMoved{}, delivery.Tick{}, delivery.Drain{}, delivery.Fenced{}}

// scribe turns messages and effects into records and back.
type scribe struct{ started []*core.Work }

// in is a message's record. A machine uses a work again: its last Start is meant.
func (s *scribe) in(m delivery.Message) any {
	last := func(w *core.Work) int {
		for i := len(s.started) - 1; i >= 0; i-- {
			if s.started[i] == w {
				return i
			}
		}
		panic("a work that was not started")
	}
	switch m := m.(type) {
	case *delivery.Ended:
		o := m.Outcome
		r := endedRecord{Start: last(m.Work), Stack: o.Stack, Cancelled: o.Cancelled, Fenced: o.Fenced, Booked: o.Booked}
		if o.Err != nil {
			v, delay, reason := keylinetype.Judge(o.Err)
			text := o.Err.Error()
			if v == keylinetype.VerdictSkip {
				text = reason
			}
			r.Err = &errorRecord{v, delay, text}
		}
		return r
	case delivery.NotStarted:
		return notStartedRecord{last(m.Work), m.Until}
	case delivery.Reloaded:
		return reloadedRecord{recordOf(m.Registry), m.Loaded}
	}
	return m
}

// message is the message of a record.
func (s *scribe) message(kindOf string, in json.RawMessage) (delivery.Message, error) {
	if len(in) == 0 {
		in = json.RawMessage("{}")
	}
	switch kindOf {
	case "Ended":
		var r endedRecord
		err := strictly(in, &r)
		if err != nil || r.Start >= len(s.started) {
			return nil, fmt.Errorf("start %d of %d: %w", r.Start, len(s.started), err)
		}
		return &delivery.Ended{Work: s.started[r.Start], Outcome: core.Outcome{Err: r.Err.err(), Stack: r.Stack, Cancelled: r.Cancelled,
			Fenced: r.Fenced, Booked: r.Booked}}, nil
	case "NotStarted":
		var r notStartedRecord
		err := strictly(in, &r)
		if err != nil || r.Start >= len(s.started) {
			return nil, fmt.Errorf("start %d of %d: %w", r.Start, len(s.started), err)
		}
		return delivery.NotStarted{Work: s.started[r.Start], Until: r.Until}, nil
	case "Reloaded":
		var r reloadedRecord
		err := strictly(in, &r)
		return delivery.Reloaded{Registry: r.Registry.registry(), Loaded: r.Loaded}, err
	}
	for _, k := range kinds {
		if kind(k) != kindOf {
			continue
		}
		v := reflect.New(reflect.Indirect(reflect.ValueOf(k)).Type())
		if err := strictly(in, v.Interface()); err != nil {
			return nil, err
		}
		if m, ok := v.Elem().Interface().(delivery.Message); ok {
			return m, nil
		}
		return v.Interface().(delivery.Message), nil
	}
	return nil, fmt.Errorf("no message %s", kindOf)
}

func (r *errorRecord) err() error {
	if r == nil {
		return nil
	}
	err := errors.New(r.Text)
	switch r.Verdict {
	case keylinetype.VerdictPermanent:
		return keylinetype.Permanent(err)
	case keylinetype.VerdictRetryAfter:
		return keylinetype.RetryAfter(err, r.Delay)
	case keylinetype.VerdictSnooze:
		return keylinetype.Snooze(r.Delay)
	case keylinetype.VerdictSkip:
		return keylinetype.Skip(r.Text)
	}
	return err
}

// out records effects, and remembers what is started.
func (s *scribe) out(effects []delivery.Effect) (list []json.RawMessage) {
	for _, e := range effects {
		var v any = e
		switch e := e.(type) {
		case delivery.Start:
			w := e.Work
			s.started = append(s.started, w)
			r := startRecord{Consumer: w.Consumer.ID, Attempt: w.Attempt, Redelivered: w.Redelivered, Checkpoint: w.Checkpoint, Fence: w.Fence,
				Dead: w.Dead, Replay: w.Replay}
			for _, event := range w.Events {
				r.Seqs = append(r.Seqs, event.Seq)
			}
			v = r
		case delivery.Flush:
			v = e.Flush
		}
		list = append(list, short(map[string]any{kind(e): v}))
	}
	return list
}

// strictly refuses what it does not know: a field that has another name now would be lost.
func strictly(text json.RawMessage, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// short is JSON without zero values, so that a new field changes no history in which it says nothing.
func short(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		panic(err)
	}
	if tree, _ = prune(tree); tree == nil {
		return nil
	}
	if text, err = json.Marshal(tree); err != nil {
		panic(err)
	}
	return text
}

func prune(v any) (kept any, zero bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if x, zero := prune(x); zero && !named[k] {
				delete(v, k)
			} else {
				v[k] = x
			}
		}
		return v, len(v) == 0
	case []any:
		for i, x := range v {
			v[i], _ = prune(x)
		}
		return v, len(v) == 0
	case json.Number:
		return v, v == "0"
	case string:
		return v, v == "" || v == "0001-01-01T00:00:00Z" || v == "00000000-0000-0000-0000-000000000000"
	case bool:
		return v, !v
	}
	return v, v == nil
}

// named are effects, which say something without a field, and errors, which do by being there.
var named = map[string]bool{"Withdraw": true, "Reload": true, "Stop": true, "Flush": true, "Start": true, "LoadEvents": true, "WakeAt": true,
	"Booked": false}
