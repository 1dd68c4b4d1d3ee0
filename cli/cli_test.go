package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// The scripts run this test binary as the program keyline.
func TestMain(m *testing.M) {
	testscript.Main(testdb.Runner{M: m}, map[string]func(){
		"keyline":  func() { os.Exit(Run(os.Args[1:])) },
		"program":  func() { os.Exit(Run(os.Args[1:], programsOwn()...)) },
		"receiver": func() { os.Exit(receiver()) },
		"poisoned": func() { os.Exit(Run(os.Args[1:], poisonedOwn()...)) },
	})
}

// programsOwn are the consumers of a program that brings its own.
func programsOwn() []keyline.Consumer {
	return []keyline.Consumer{
		{
			Name: "mailer", Types: []string{"order.*"}, Versions: []int{1, 2}, Revision: 3,
			Effect: keyline.External("the provider drops a key that it has seen"),
			Handle: func(context.Context, *keyline.Delivery) error { return nil },
		},
		{
			Name: "broken", Types: []string{"order.placed"}, Effect: keyline.None(), Retry: keyline.RetryPolicy{Delays: []time.Duration{}},
			Handle: func(context.Context, *keyline.Delivery) error { return errors.New("always") },
		},
		{
			// It runs until it is cut short, where the environment asks for it.
			Name: "slow", Types: []string{"slow.*"}, Effect: keyline.None(),
			Handle: func(ctx context.Context, _ *keyline.Delivery) error {
				if os.Getenv("KEYLINE_TEST_SLOW") == "" {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			},
		},
		{Name: "contract", Types: []string{"order.*"}, Effect: keyline.None(), ContractOnly: true},
		{
			Name: "elsewhere", Types: []string{"order.*"}, Effect: keyline.None(), Excluded: "runs in another program",
			Handle: func(context.Context, *keyline.Delivery) error { return errors.New("must not run") },
		},
	}
}

// scripts runs the scripts of a directory in testdata, each with a database of
// its own if url makes one.
func scripts(t *testing.T, dir string, url func(t *testing.T) string) {
	t.Helper()
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in testdata/%s: %v", dir, err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := url(t)
			commands := newBackground().commands()
			maps.Copy(commands, map[string]func(*testscript.TestScript, bool, []string){
				"exits": exits, "json": jsonValue, "keys": jsonKeys, "lines": lineCount, "jaeger-double": jaegerDouble, "sql": runSQL,
			})
			testscript.Run(t, testscript.Params{
				Files: []string{f}, RequireExplicitExec: true,
				Setup: func(e *testscript.Env) error {
					e.Setenv("DATABASE_URL", database)
					e.Setenv("NOWHERE_URL", nowhere(database))
					e.Setenv("NO_COLOR", "1")
					for _, name := range []string{"KEYLINE_PG_BIN", "GORACE"} {
						if v := os.Getenv(name); v != "" {
							e.Setenv(name, v)
						}
					}
					return nil
				},
				Cmds: commands,
			})
		})
	}
}

func TestScriptsWithoutADatabase(t *testing.T) {
	scripts(t, "none", func(*testing.T) string { return "" })
}

func TestScriptsOnAnEmptyDatabase(t *testing.T) {
	scripts(t, "empty", func(t *testing.T) string { return testdb.NewEmpty(t).URL })
}

func TestScriptsOnAnInstalledSchema(t *testing.T) {
	scripts(t, "installed", func(t *testing.T) string { return testdb.New(t).URL })
}

// nowhere names a database that the server does not have.
func nowhere(database string) string {
	u, err := neturl.Parse(database)
	if err != nil || database == "" {
		return ""
	}
	u.Path = "/no_such_database"
	return u.String()
}

// exits N command… runs a command and wants this exit code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// sql STATEMENT [VALUE] runs a statement on the script's database, whose one row is this value.
func runSQL(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, ts.Getenv("DATABASE_URL"))
	ts.Check(err)
	defer func() { _ = conn.Close(ctx) }()
	if len(args) == 1 {
		if _, err = conn.Exec(ctx, args[0]); (err == nil) == neg {
			ts.Fatalf("%s: %v", args[0], err)
		}
		return
	}
	var got any
	ts.Check(conn.QueryRow(ctx, args[0]).Scan(&got))
	if (fmt.Sprint(got) == args[1]) == neg {
		ts.Fatalf("%s: %v, want (not: %v) %s", args[0], got, neg, args[1])
	}
}

// object reads a file (or stdout) that must be exactly one JSON object.
func object(ts *testscript.TestScript, file string) map[string]any {
	d := json.NewDecoder(bytes.NewReader([]byte(ts.ReadFile(file))))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		ts.Fatalf("%s is no JSON object: %v", file, err)
	}
	if d.More() {
		ts.Fatalf("%s is more than one JSON object", file)
	}
	return v
}

// at follows a path such as consumers.0.name.
func at(ts *testscript.TestScript, v any, path string) any {
	for part := range strings.SplitSeq(path, ".") {
		switch here := v.(type) {
		case map[string]any:
			next, ok := here[part]
			if !ok {
				ts.Fatalf("no %q in %v", part, slices.Sorted(maps.Keys(here)))
			}
			v = next
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(here) {
				ts.Fatalf("no %q in a list of %d", part, len(here))
			}
			v = here[i]
		default:
			ts.Fatalf("nothing can be at %q in %v", part, v)
		}
	}
	return v
}

// json FILE PATH VALUE wants a value at a path of one JSON object.
func jsonValue(ts *testscript.TestScript, neg bool, args []string) {
	got := fmt.Sprint(at(ts, object(ts, args[0]), args[1]))
	if (got == args[2]) == neg {
		ts.Fatalf("%s is %s, want (not: %v) %s", args[1], got, neg, args[2])
	}
}

// keys FILE PATH key… wants exactly these keys at a path; "." is the object itself.
func jsonKeys(ts *testscript.TestScript, _ bool, args []string) {
	var v any = object(ts, args[0])
	if args[1] != "." {
		v = at(ts, v, args[1])
	}
	m, ok := v.(map[string]any)
	if !ok {
		ts.Fatalf("no object at %s: %v", args[1], v)
	}
	got, want := slices.Sorted(maps.Keys(m)), slices.Sorted(slices.Values(args[2:]))
	if !slices.Equal(got, want) {
		ts.Fatalf("keys at %s are %v, want %v", args[1], got, want)
	}
}

// lines FILE N wants this many lines.
func lineCount(ts *testscript.TestScript, _ bool, args []string) {
	if got := strings.Count(ts.ReadFile(args[0]), "\n"); strconv.Itoa(got) != args[1] {
		ts.Fatalf("%s has %d lines, want %s", args[0], got, args[1])
	}
}
