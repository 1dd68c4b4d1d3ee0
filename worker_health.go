package keyline

import (
	"encoding/json"
	"net/http"

	"github.com/keylinehq/keyline/listener"
)

// Readiness is whether a worker takes work, and what is missing where it does not. It
// names no hosts, users or payloads: it may be shown to whoever can reach a health check.
type Readiness struct {
	Ready bool `json:"ready"`
	// State is as in Health, or "disabled": then it is ready to do nothing.
	State string `json:"state"`
	Name  string `json:"name"`
	// Worker is the present incarnation, 0 while there is none.
	Worker int64 `json:"worker"`
	// Missing are the names of the checks that fail.
	Missing []string         `json:"missing"`
	Checks  []ReadinessCheck `json:"checks"`
}

// ReadinessCheck is one condition of being ready.
type ReadinessCheck struct {
	// Name is "database" (it answers), "lease" (the worker is known to the others), "listening"
	// (wakes arrive) or "draining" (it is not about to end).
	Name string `json:"name"`
	// Status is "ok", "warn" (it works, but worse: it polls, since no notifications come through a pooler) or "fail".
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// The statuses of a check.
const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "fail"
)

// stateDisabled is how a worker stands that starts nothing.
const stateDisabled = "disabled"

// Readiness says whether the worker takes work. It asks nobody: what it says of the
// database is as old as the last renewal, at most a third of the lease.
func (w *Worker) Readiness() Readiness {
	h := w.Health()
	r := Readiness{State: h.State, Name: w.cfg.Name, Worker: h.Worker, Missing: []string{}, Checks: []ReadinessCheck{}}
	if w.cfg.Disabled {
		r.Ready, r.State = true, stateDisabled
		return r
	}
	r.Checks = append(r.Checks, database(h), leased(h), w.listening(h), w.staying(h))
	for _, c := range r.Checks {
		if c.Status == checkFail {
			r.Missing = append(r.Missing, c.Name)
		}
	}
	r.Ready = len(r.Missing) == 0
	return r
}

// database goes by the loop that talks to it without pause and for nobody else.
func database(h Health) ReadinessCheck {
	c := ReadinessCheck{Name: "database", Status: checkFail, Detail: "not connected yet"}
	for _, l := range h.Loops {
		if l.Name != "lease" {
			continue
		}
		switch {
		case !l.OK: // the error names the server: it is in the log
			c.Detail = "it does not answer since " + l.Since.UTC().Format("2006-01-02T15:04:05Z")
		case h.Worker != 0:
			c.Status, c.Detail = checkOK, ""
		}
	}
	return c
}

func leased(h Health) ReadinessCheck {
	if h.Worker == 0 {
		return ReadinessCheck{Name: "lease", Status: checkFail, Detail: "the worker has not joined"}
	}
	return ReadinessCheck{Name: "lease", Status: checkOK}
}

func (w *Worker) listening(h Health) ReadinessCheck {
	c := ReadinessCheck{Name: "listening", Status: checkFail, Detail: "not known yet"}
	if !w.running() || h.State == "stopped" {
		return c
	}
	switch w.parts.listener.Status().Mode {
	case listener.Listening:
		c.Status, c.Detail = checkOK, ""
	case listener.Polling:
		c.Status, c.Detail = checkWarn, "notifications do not arrive: it polls"
	case listener.Starting:
	}
	return c
}

func (w *Worker) staying(h Health) ReadinessCheck {
	c := ReadinessCheck{Name: "draining", Status: checkOK}
	asked := false
	if w.running() {
		select {
		case <-w.parts.supervisor.DrainAsked():
			asked = true
		default:
		}
	}
	if asked || h.State == "stopping" || h.State == "stopped" {
		c.Status, c.Detail = checkFail, "it takes no more work"
	}
	return c
}

// running reports whether Start is through; parts may then be read.
func (w *Worker) running() bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}

// Handler serves a worker's health, before, while and after it runs:
//
//   - /livez answers 200 as long as the process answers: restarting it mends neither the
//     database nor the network, and a stopped worker may be one part of a larger program;
//   - /readyz answers 200 with Readiness where it is ready, else 503.
//
// It knows GET and HEAD, writes JSON, asks no database and shows no payloads. It has no authentication.
func (w *Worker) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(rw http.ResponseWriter, _ *http.Request) {
		answer(rw, http.StatusOK, map[string]string{"state": w.Readiness().State})
	})
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		r := w.Readiness()
		code := http.StatusOK
		if !r.Ready {
			code = http.StatusServiceUnavailable
		}
		answer(rw, code, r)
	})
	return mux
}

func answer(rw http.ResponseWriter, code int, v any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("Cache-Control", "no-store")
	rw.Header().Set("X-Content-Type-Options", "nosniff")
	rw.WriteHeader(code)
	_ = json.NewEncoder(rw).Encode(v) // the other side is gone
}
