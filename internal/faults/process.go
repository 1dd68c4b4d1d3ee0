package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// worker is a worker process.
type worker struct {
	t     *stage
	cmd   *osexec.Cmd
	in    io.Writer
	lines chan string
	gone  chan struct{}
}

// start starts a worker and waits until it is ready.
func (t *stage) start(s spec) *worker {
	w := t.launch(s)
	if !w.says("ready", 60*time.Second) {
		t.fatal("worker %s does not start", s.Name)
	}
	return w
}

// launch starts a worker process.
func (t *stage) launch(s spec) *worker {
	if s.URL == "" {
		s.URL = t.url()
	}
	if s.Direct == "" {
		s.Direct = t.url()
	}
	if len(s.Consumers) == 0 {
		s.Consumers = []string{"a", "b", "tx"}
	}
	if s.Config.Lease == 0 {
		s.Config.Lease = 2 * time.Second
	}
	text, err := json.Marshal(s)
	t.must(err, "encode")
	args := append(s.Wrap, t.house.self)
	cmd := osexec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	log, err := os.OpenFile(filepath.Join(t.dir, s.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	t.must(err, "open a log")
	cmd.Stderr = log
	in, err := cmd.StdinPipe() // it ends with this program; Pdeathsig would go by the thread
	t.must(err, "make a pipe")
	out, err := cmd.StdoutPipe()
	t.must(err, "make a pipe")
	t.must(cmd.Start(), "start a worker")
	w := &worker{t: t, cmd: cmd, in: in, lines: make(chan string, 1000), gone: make(chan struct{})}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			w.lines <- lines.Text()
		}
		_ = cmd.Wait() // how it ends is the scenario's business
		_, _ = in.Close(), log.Close()
		close(w.gone)
		close(w.lines)
	}()
	t.onEnd(w.kill)
	return w
}

// says waits for a line; false where the worker ends first, or time does.
func (w *worker) says(line string, within time.Duration) bool {
	_, ok := w.line(line, within)
	return ok
}

// figures asks the process how it fares.
func (w *worker) figures() (f figures) {
	_, err := fmt.Fprintln(w.in)
	w.t.must(err, "ask a worker")
	text, ok := w.line("figures ", 20*time.Second)
	if !ok {
		w.t.fatal("a worker does not answer")
	}
	w.t.must(json.NewDecoder(strings.NewReader(text[len("figures "):])).Decode(&f), "read a worker's figures")
	return f
}

// line waits for a line that begins so.
func (w *worker) line(begin string, within time.Duration) (line string, ok bool) {
	timer := w.t.house.clock.NewTimer(within)
	defer timer.Stop()
	for {
		select {
		case got, ok := <-w.lines:
			if !ok {
				return "", false
			}
			if strings.HasPrefix(got, begin) {
				return got, true
			}
		case <-timer.C():
			return "", false
		}
	}
}

func (w *worker) signal(s syscall.Signal) {
	w.t.must(w.cmd.Process.Signal(s), "signal a worker")
}

// kill ends the worker as a power cut would.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill() // it may be gone
	<-w.gone
}

// ended waits until the worker is gone.
func (w *worker) ended(within time.Duration) bool {
	timer := w.t.house.clock.NewTimer(within)
	defer timer.Stop()
	select {
	case <-w.gone:
		return true
	case <-timer.C():
		return false
	}
}

// alive says whether the process runs.
func (w *worker) alive() bool {
	select {
	case <-w.gone:
		return false
	default:
		return true
	}
}
