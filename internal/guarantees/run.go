package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// result is how a test ended.
type result string

const (
	passed      result = "passed"
	failed      result = "failed"
	skipped     result = "skipped"
	partSkipped result = "passed, but with a skipped subtest"
	absent      result = "does not exist, or its package did not build or ended early"
)

// event is a line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// runTests runs all tests in one go: one build, one server. Every named test
// has a result afterwards; talk goes to w.
func runTests(ctx context.Context, dir string, promises []promise, timeout time.Duration, w io.Writer) (map[test]result, error) {
	module, err := modulePath(ctx, dir)
	if err != nil {
		return nil, err
	}
	wanted := map[test]result{}
	var packages, functions []string
	for _, p := range promises {
		for _, t := range p.tests {
			wanted[t] = absent
			packages = append(packages, "./"+t.pkg)
			functions = append(functions, t.function())
		}
	}
	slices.Sort(packages)
	slices.Sort(functions)
	w = &lockedWriter{w: w} // go test's errors come on another goroutine than its events
	// A function that is named for one package runs in another that has one of
	// the same name; that does no harm.
	args := []string{
		"test", "-json", "-race", "-count=1", "-timeout", timeout.String(),
		"-run", "^(" + strings.Join(slices.Compact(functions), "|") + ")$",
	}
	cmd := exec.CommandContext(ctx, "go", append(args, slices.Compact(packages)...)...)
	// Asked to end, go test ends its tests; killed, it would leave them.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.Dir = dir
	cmd.Stderr = w
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("go test: %w", err)
	}
	readErr := readEvents(stdout, module, wanted, w)
	// That tests failed is in the results already.
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("go test: %w", err)
	}
	return wanted, errors.Join(readErr, context.Cause(ctx))
}

func modulePath(ctx context.Context, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// readEvents fills in the results of the wanted tests.
func readEvents(r io.Reader, module string, wanted map[test]result, w io.Writer) error {
	output := map[test][]string{} // of tests that have not ended
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var e event
		if json.Unmarshal(line, &e) != nil {
			fmt.Fprintf(w, "%s", line) // go test speaks plainly about some mistakes
			continue
		}
		t := test{pkg: relative(module, e.Package), name: e.Test}
		switch e.Action {
		case "build-output": // belongs to no test
			fmt.Fprint(w, e.Output)
		case "output":
			output[t] = append(output[t], e.Output)
		case "pass", "fail", "skip":
			settle(wanted, t, e.Action)
			// The package's own lines tell of crashes and of what did not build.
			if e.Action == "fail" {
				fmt.Fprint(w, strings.Join(output[t], ""))
			}
			if _, ok := wanted[t]; ok {
				fmt.Fprintf(w, "%-7s %s (%.1fs)\n", wanted[t], t, e.Elapsed)
			}
			delete(output, t)
		}
	}
}

// lockedWriter may be written to from several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// settle books the end of a test for itself and, if it was skipped, for those
// that it is part of.
func settle(wanted map[test]result, t test, action string) {
	if action == "skip" {
		for whole := (test{t.pkg, path.Dir(t.name)}); whole.name != "."; whole.name = path.Dir(whole.name) {
			if _, ok := wanted[whole]; ok {
				wanted[whole] = partSkipped
			}
		}
	}
	r, ok := wanted[t]
	switch {
	case !ok || (r == partSkipped && action == "pass"):
	case action == "pass":
		wanted[t] = passed
	case action == "skip":
		wanted[t] = skipped
	default:
		wanted[t] = failed
	}
}

// relative is a package's place in the module.
func relative(module, pkg string) string {
	if pkg == module {
		return "."
	}
	return strings.TrimPrefix(pkg, module+"/")
}

// report prints a line per promise and the count, and reports whether all hold.
func report(w io.Writer, promises []promise, results map[test]result) bool {
	var good, bad int
	fmt.Fprintln(w)
	for _, p := range promises {
		var problems []string
		for _, t := range p.tests {
			if r := results[t]; r != passed {
				problems = append(problems, fmt.Sprintf("%s: %s", t, r))
			}
		}
		if len(problems) > 0 {
			bad++
			fmt.Fprintf(w, "%-6s FAIL  %s\n", p.id, strings.Join(problems, "; "))
			continue
		}
		good++
		fmt.Fprintf(w, "%-6s ok    %d tests\n", p.id, len(p.tests))
	}
	fmt.Fprintf(w, "%d passed, %d failed\n", good, bad)
	return bad == 0
}
