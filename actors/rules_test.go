package actors

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/keylinetype"
)

// forbidden are parts of the actor library that were found to be broken or to
// invite a bug that this code relies on not having.
var forbidden = map[string]string{
	"ReenterAfter":                  "it runs on the old incarnation after a restart",
	"RequestFuture":                 "nothing blocks on a future in a Receive",
	"StopFuture":                    "it gives up after ten seconds",
	"PoisonFuture":                  "it gives up after ten seconds",
	"SetReceiveTimeout":             "it races and fires once",
	"Stash":                         "last in, first out, and it loses the sender",
	"Watch":                         "of one's own child, Terminated comes twice",
	"WithGuardian":                  "an escalation ends the process",
	"Bounded":                       "it burns a core after the first drop",
	"BoundedDropping":               "it burns a core after the first drop",
	"RestartingSupervisorStrategy":  "a hot loop",
	"NewRestartingStrategy":         "a hot loop",
	"NewExponentialBackoffStrategy": "linear, uncapped, and it can revive a stopped actor",
	"WithReceiverMiddleware":        "with shared props, the nth actor runs it n times",
	"WithSenderMiddleware":          "with shared props, the nth actor runs it n times",
	"SpawnNamed":                    "a name that is still stopping exists",
}

func TestNothingUsesTheLibrarysTraps(t *testing.T) {
	for _, dir := range []string{".", "../supervisor"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no sources in %s: %v", dir, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range file.Imports {
				path := strings.Trim(i.Path.Value, `"`)
				if strings.Contains(path, "protoactor-go/") && !strings.HasSuffix(path, "/actor") && !strings.HasSuffix(path, "/eventstream") {
					t.Errorf("%s imports %s", name, path)
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && forbidden[s.Sel.Name] != "" {
					t.Errorf("%s uses %s: %s", name, s.Sel.Name, forbidden[s.Sel.Name])
				}
				return true
			})
		}
	}
}

func TestDecisions(t *testing.T) {
	consumer := &core.Consumer{Retry: keylinetype.RetryPolicy{Delays: keylinetype.DefaultRetryDelays()}}
	work := func(attempt, granted int) core.Work {
		return core.Work{Consumer: consumer, Attempt: attempt, Checkpoint: core.Checkpoint{Granted: granted}}
	}
	failure := core.Outcome{Err: errors.New("x")}
	panicked := core.Outcome{Err: &PanicError{Value: keylinetype.Permanent(errors.New("x"))}, Stack: "goroutine 1"}
	dead := work(6, 0)
	dead.Dead = &core.DeadRetry{Granted: 4}
	for name, c := range map[string]struct {
		w    core.Work
		o    core.Outcome
		kind Kind
		want actor.Directive
	}{
		"an error":                           {work(1, 0), failure, KindError, actor.RestartDirective},
		"the last but one of four runs":      {work(3, 0), failure, KindError, actor.RestartDirective},
		"the last of four runs":              {work(4, 0), failure, KindFinal, actor.StopDirective},
		"after an operator granted more":     {work(5, 4), failure, KindError, actor.RestartDirective},
		"a dead letter's retry":              {dead, failure, KindError, actor.RestartDirective},
		"a permanent error":                  {work(1, 0), core.Outcome{Err: keylinetype.Permanent(errors.New("x"))}, KindFinal, actor.StopDirective},
		"a panic, whatever it panicked with": {work(1, 0), panicked, KindPanic, actor.RestartDirective},
		"a panic in the last run":            {work(4, 0), panicked, KindFinal, actor.StopDirective},
	} {
		kind := Classify(&c.w, c.o)
		if d := Decide(kind, false); kind != c.kind || d.Directive != c.want || d.Escalate {
			t.Errorf("%s: %v, %+v", name, kind, d)
		}
		if d := Decide(kind, true); d.Directive != c.want || !d.Escalate {
			t.Errorf("%s, over the threshold: %+v", name, d)
		}
	}
	for failures, want := range []actor.Directive{0: actor.RestartDirective, 1: actor.RestartDirective, 3: actor.RestartDirective, 4: actor.StopDirective} {
		if failures == 2 {
			continue
		}
		if got := DecideRecord("bug", failures); got != want {
			t.Errorf("a record actor's failure no. %d: %v", failures, got)
		}
	}
	if got := DecideRecord(&Escalation{}, 0); got != actor.ResumeDirective {
		t.Errorf("an escalation: %v", got)
	}
}
