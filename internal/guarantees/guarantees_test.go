package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseReadsIdsAndTestsFromTheTables(t *testing.T) {
	got, err := parse(`# Guarantees

| not | this table |
|---|---|
| G0 | `+"`a: TestX`"+` |

| id | promise | limits | tests |
|---|---|:--|---|
| G1 | a \| b | none | `+"`store: TestA`, `.: TestB/sub_test`"+` |
| **G2.1** | order | | `+"`actors/delivery: FuzzC`<br>`./store: ExampleD`"+` |
| G1 | again | | `+"`store: TestE`"+` |

Text.

| ID | Tests |
| - | - |
| P4 | `+"`store: TestA`"+` |
`, "")
	if err != nil {
		t.Fatal(err)
	}
	want := []promise{
		{"G1", []test{{"store", "TestA"}, {".", "TestB/sub_test"}, {"store", "TestE"}}},
		{"G2.1", []test{{"actors/delivery", "FuzzC"}, {"store", "ExampleD"}}},
		{"P4", []test{{"store", "TestA"}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func TestParseRefusesPromisesWithoutProof(t *testing.T) {
	const head = "| id | promise | limits | tests |\n|---|---|---|---|\n"
	for _, tc := range []struct{ markdown, only, want string }{
		{head + "| G1 | p | l | |", "", "line 3: G1: names no test"},
		{head + "| G1 | p | l | see the tests |", "", "names no test"},
		{head + "| G1 | p | l | `TestA` |", "", "not of the form"},
		{head + "| G1 | p | l | `store: testA` |", "", "not of the form"},
		{"nothing", "", "no promise found"},
		{head, "", "no promise found"},
		{head + "| G1 | p | l | `store: TestA` |", "G2", "no promise found"},
	} {
		if _, err := parse(tc.markdown, tc.only); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.markdown, err, tc.want)
		}
	}
}

// module writes a module with one test of each fate.
func module(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26\n",
		"root_test.go": `package m
import "testing"
func TestRoot(t *testing.T) {}`,
		"good/good_test.go": `package good
import "testing"
func TestGood(t *testing.T) { t.Run("part", func(*testing.T) {}) }
func TestPartSkipped(t *testing.T) { t.Run("a", func(t *testing.T) { t.Run("b", func(t *testing.T) { t.Skip() }) }) }
func TestSkipped(t *testing.T) { t.Skip("not today") }
func FuzzSeeds(f *testing.F) { f.Add(1); f.Fuzz(func(t *testing.T, n int) {}) }`,
		"bad/bad_test.go": `package bad
import "testing"
func TestGood(t *testing.T) {}
func TestBad(t *testing.T) { t.Error("broken promise") }
func TestRacy(t *testing.T) { n := 0; done := make(chan bool); go func() { n++; close(done) }(); n++; <-done }`,
		"crash/crash_test.go": `package crash
import ("os"; "testing")
func TestCrash(t *testing.T) { os.Exit(3) }`,
		"broken/broken_test.go": `package broken
import "testing"
func TestBroken(t *testing.T) { undefined() }`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestOnlyTestsThatRanAndPassedProveAPromise(t *testing.T) {
	t.Setenv("GOFLAGS", "-buildvcs=false")
	promises := []promise{
		{"G1", []test{{".", "TestRoot"}, {"good", "TestGood"}, {"good", "TestGood/part"}, {"good", "FuzzSeeds"}}},
		{"G2", []test{{"good", "TestGood"}, {"bad", "TestBad"}}},
		{"G3", []test{{"good", "TestSkipped"}}},
		{"G4", []test{{"good", "TestPartSkipped"}}},
		{"G5", []test{{"good", "TestGone"}}},
		{"G6", []test{{"good", "TestGood/gone"}}},
		{"G7", []test{{"broken", "TestBroken"}}},
		{"G8", []test{{"crash", "TestCrash"}}},
		{"G9", []test{{"nowhere", "TestNowhere"}}},
		{"G10", []test{{"bad", "TestRacy"}}},
		{"G11", []test{{"bad", "TestGood"}}},
	}
	var talk, out bytes.Buffer
	results, err := runTests(t.Context(), module(t), promises, time.Minute, &talk)
	if err != nil {
		t.Fatal(err)
	}
	if report(&out, promises, results) {
		t.Error("the whole is said to hold")
	}
	for _, want := range []string{
		"G1     ok    4 tests\n",
		"G2     FAIL  bad: TestBad: failed\n",
		"G3     FAIL  good: TestSkipped: skipped\n",
		"G4     FAIL  good: TestPartSkipped: passed, but with a skipped subtest\n",
		"G5     FAIL  good: TestGone: does not exist",
		"G6     FAIL  good: TestGood/gone: does not exist",
		"G7     FAIL  broken: TestBroken: does not exist",
		"G9     FAIL  nowhere: TestNowhere: does not exist",
		"G10    FAIL  bad: TestRacy: failed\n",
		"G11    ok    1 tests\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line %q", want)
		}
	}
	if !strings.Contains(out.String(), "G8     FAIL  crash: TestCrash: ") {
		t.Error("a test that ends its process counts")
	}
	if !strings.HasSuffix(out.String(), "\n2 passed, 9 failed\n") {
		t.Error("wrong count")
	}
	for _, want := range []string{"broken promise", "undefined: undefined", "DATA RACE"} {
		if !strings.Contains(talk.String(), want) {
			t.Errorf("the reason %q is not told", want)
		}
	}
	if t.Failed() {
		t.Logf("%s\n%s", &talk, &out)
	}
}
