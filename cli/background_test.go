package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/keylinehq/keyline/internal/clock"
)

// patience is how long a script waits for a program: far longer than anything takes.
const patience = 60 * time.Second

// background holds the programs that a script has started, by name.
type background struct{ running map[string]*program }

// program is a program in the background; its state may be read when it has ended.
type program struct {
	*exec.Cmd
	ended chan struct{}
}

func newBackground() *background { return &background{running: map[string]*program{}} }

func (b *background) commands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){
		"start": b.start, "start-unread": b.startUnread, "hang-up": b.hangUp, "await": b.await, "await-text": b.awaitText, "end": b.end, "interrupt": b.interrupt, "gone": b.ended, "get": b.get, "bearer": b.bearer, "serves": serves, "seqs": seqs, "wait-for": waitFor, "env-from": envFrom,
	}
}

// start NAME command… starts a program, with its output in NAME.out and NAME.err.
func (b *background) start(ts *testscript.TestScript, _ bool, args []string) {
	out, err := os.Create(ts.MkAbs(args[0] + ".out"))
	ts.Check(err)
	log, err := os.Create(ts.MkAbs(args[0] + ".err"))
	ts.Check(err)
	b.run(ts, args, out, log)
}

// start-unread NAME command… starts a program that writes to pipes which nobody reads any more.
func (b *background) startUnread(ts *testscript.TestScript, _ bool, args []string) {
	gone, out, err := os.Pipe()
	ts.Check(err)
	ts.Check(gone.Close())
	b.run(ts, args, out, out)
}

func (b *background) run(ts *testscript.TestScript, args []string, out, log *os.File) {
	path := ""
	for _, dir := range strings.Split(ts.Getenv("PATH"), ":") {
		if info, err := os.Stat(dir + "/" + args[1]); err == nil && info.Mode()&0o111 != 0 {
			path = dir + "/" + args[1]
			break
		}
	}
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir = ts.Getenv("WORK")
	for _, v := range []string{"PATH", "HOME", "TMPDIR", "DATABASE_URL", "NO_COLOR", "KEYLINE_PG_BIN", "KEYLINE_TEST_SLOW", "HOOK_SECRET", "GORACE"} {
		if value := ts.Getenv(v); value != "" {
			cmd.Env = append(cmd.Env, v+"="+value)
		}
	}
	cmd.Stdout, cmd.Stderr = out, log
	if signal.Ignored(syscall.SIGHUP) { // as under nohup: the program would ignore it, too
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	ts.Check(cmd.Start())
	_, _ = out.Close(), log.Close() // the program has them
	p := &program{cmd, make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // its outcome is in ProcessState
	}()
	b.running[args[0]] = p
	ts.Defer(func() {
		_ = cmd.Process.Kill()
		<-p.ended
	})
}

// await NAME N waits until the program has written N lines.
func (b *background) await(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	b.until(ts, args[0], func() bool { return strings.Count(ts.ReadFile(args[0]+".out"), "\n") >= want })
}

// await-text NAME TEXT waits until the program has said this, anywhere.
func (b *background) awaitText(ts *testscript.TestScript, _ bool, args []string) {
	b.until(ts, args[0], func() bool {
		return strings.Contains(ts.ReadFile(args[0]+".out"), args[1]) || strings.Contains(ts.ReadFile(args[0]+".err"), args[1])
	})
}

// until waits until cond holds, and not for a program that has ended.
func (b *background) until(ts *testscript.TestScript, name string, cond func() bool) {
	p := b.running[name]
	until(ts, cond, func() bool {
		select {
		case <-p.ended:
			return !cond()
		default:
			return false
		}
	}, func() string { return name + " has written\n" + ts.ReadFile(name+".out") + ts.ReadFile(name+".err") })
}

func until(ts *testscript.TestScript, cond, hopeless func() bool, tell func() string) {
	c := clock.Real()
	deadline := c.Mono() + patience
	for !cond() {
		if hopeless() || c.Mono() > deadline {
			ts.Fatalf("it does not get there; %s", tell())
		}
		_ = clock.Sleep(context.Background(), c, 10*time.Millisecond)
	}
}

// gone waits for the end of a program.
func (b *background) gone(ts *testscript.TestScript, name string) *os.ProcessState {
	p := b.running[name]
	until(ts, func() bool {
		select {
		case <-p.ended:
			return true
		default:
			return false
		}
	}, func() bool { return false }, func() string { return name + " runs on; it has written\n" + ts.ReadFile(name+".err") })
	return p.ProcessState
}

// end NAME [twice] sends SIGTERM, or two of them, and wants a good end.
func (b *background) end(ts *testscript.TestScript, _ bool, args []string) {
	p := b.running[args[0]]
	ts.Check(p.Process.Signal(syscall.SIGTERM))
	if len(args) > 1 {
		// Two signals that come at once are one.
		b.awaitText(ts, false, []string{args[0], "worker is stopping"})
		if err := p.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			ts.Fatalf("%v", err)
		}
	}
	if state := b.gone(ts, args[0]); !state.Success() {
		ts.Fatalf("%s: %v\n%s", args[0], state, ts.ReadFile(args[0]+".err"))
	}
}

// hang-up NAME sends SIGHUP, as the end of a terminal does, and wants a good end.
func (b *background) hangUp(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(b.running[args[0]].Process.Signal(syscall.SIGHUP))
	if state := b.gone(ts, args[0]); !state.Success() {
		ts.Fatalf("%s: %v\n%s", args[0], state, ts.ReadFile(args[0]+".err"))
	}
}

// gone NAME N waits until a program has ended by itself, and wants this exit code.
func (b *background) ended(ts *testscript.TestScript, _ bool, args []string) {
	if got := b.gone(ts, args[0]).ExitCode(); strconv.Itoa(got) != args[1] {
		ts.Fatalf("%s: exit code %d, want %s\n%s", args[0], got, args[1], ts.ReadFile(args[0]+".err"))
	}
}

// wait-for command… -- TEXT repeats a command until it prints this text.
func waitFor(ts *testscript.TestScript, _ bool, args []string) {
	sep := slices.Index(args, "--")
	until(ts, func() bool {
		ts.Check(ts.Exec(args[0], args[1:sep]...))
		return strings.Contains(ts.ReadFile("stdout"), args[sep+1])
	}, func() bool { return false }, func() string { return "the last answer was\n" + ts.ReadFile("stdout") })
}

// env-from NAME FILE KEY sets a variable from the JSON object in a file's first line.
func envFrom(ts *testscript.TestScript, _ bool, args []string) {
	line, _, _ := strings.Cut(ts.ReadFile(args[1]), "\n")
	var v map[string]any
	ts.Check(json.Unmarshal([]byte(line), &v))
	ts.Setenv(args[0], fmt.Sprint(v[args[2]]))
}

// interrupt NAME N sends SIGINT and wants this exit code.
func (b *background) interrupt(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(b.running[args[0]].Process.Signal(os.Interrupt))
	if got := b.gone(ts, args[0]).ExitCode(); strconv.Itoa(got) != args[1] {
		ts.Fatalf("%s: exit code %d, want %s\n%s", args[0], got, args[1], ts.ReadFile(args[0]+".err"))
	}
}

// seqs FILE RECORD n… wants a record's events in a file of NDJSON, in this order.
func seqs(ts *testscript.TestScript, _ bool, args []string) {
	var got []string
	for line := range bytes.Lines([]byte(ts.ReadFile(args[0]))) {
		var e struct {
			Record string
			Seq    int64
		}
		if err := json.Unmarshal(line, &e); err != nil {
			ts.Fatalf("%s: %v: %s", args[0], err, line)
		}
		if e.Record == args[1] {
			got = append(got, strconv.FormatInt(e.Seq, 10))
		}
	}
	if !slices.Equal(got, args[2:]) {
		ts.Fatalf("%s has seqs %v of %s, want %v", args[0], got, args[1], args[2:])
	}
}
