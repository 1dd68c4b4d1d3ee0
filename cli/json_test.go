package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/testdb"
)

// The events that the lines are about: the first is given up and parked on, the second in a long backoff.
const (
	poisoned = "0197c2a0-5b1e-7c9a-8f3e-000000000001"
	delayed  = "0197c2a0-5b1e-7c9a-8f3e-000000000002"
)

// jsonLines runs every command that ends by itself, in an order in which each finds what it needs. The first words up
// to the command's own name its path; each act is tried with --dry-run first.
var jsonLines = []struct {
	line string
	// exit is its exit code; where it is no success, nothing needs to be on standard output.
	exit int
}{
	{line: "append order:1 order.poison null --id " + poisoned},
	{line: "append order:2 order.slow null --id " + delayed},
	{line: "why order:1"}, // awaited: see below
	{line: "why --consumer parks"},
	{line: "status"},
	{line: "health"},
	{line: "top --once"},
	{line: "consumers"},
	{line: "workers"},
	{line: "show order:1"},
	{line: "records list"},
	{line: "records show order:1"},
	{line: "events list order:1"},
	{line: "events show " + poisoned},
	{line: "trace " + poisoned},
	{line: "verify"},
	{line: "doctor"},
	{line: "worker --check"},
	{line: "migrate status"},
	{line: "migrate up"},
	{line: "migrate sql"},
	{line: "migrate roles --print"},
	{line: "api openapi"},
	{line: "token create olga --role viewer --yes"},
	{line: "token list"},
	{line: "token revoke 1 --yes"},
	{line: "retry " + delayed + " --yes"},
	{line: "events retry " + delayed + " --yes"},
	{line: "skip order:2 waits --yes --reason test"},
	{line: "dead-letters list"},
	{line: "dead-letters retry 1 --yes"},
	{line: "dead-letters resolve --all --yes --reason test"},
	{line: "consumers pause parks --yes"},
	{line: "consumers resume parks --yes"},
	{line: "consumers disable parks --yes --reason test"},
	{line: "consumers retire parks --yes --reason test"},
	{line: "recover --yes", exit: exitConflict},
	{line: "prune --yes --reason test"},
	{line: "outbox probe --settings testdata/outbox.yaml"}, // its table is made: see below
	{line: "outbox prepare --settings testdata/outbox.yaml --guard --yes"},
	{line: "outbox backfill --table outbox --yes"},
	{line: "outbox cutover --table outbox --yes --reason test"},
	{line: "outbox status --table outbox"},
	{line: "outbox back --table outbox --yes --reason test"},
	{line: "drain w1 --yes --reason test"},
	{line: "audit"},
	{line: "migrate down --to 0 --yes"},
}

// elsewhere are the commands that take long or do not end by themselves, and the scripts that read their JSON.
var elsewhere = map[string]string{
	"demo": "none/demo", "soak": "none/soak", "dev": "none/dev", "bench drain": "empty/bench", "bench hot": "empty/bench", "bench append": "empty/bench",
	"bench latency": "empty/bench", "bench pinned": "empty/bench", "bench blocked": "empty/bench", "bench backlog": "empty/bench", "bench scale": "empty/bench",
	"bench footprint": "empty/bench", "bench trouble": "empty/bench",
}

// runApart runs a command line, with standard output apart.
func runApart(consumers []keyline.Consumer, args ...string) (code int, out, talk string) {
	var stdout, stderr bytes.Buffer
	sig := catchSignals()
	defer sig.release()
	a := &app{consumers: consumers, clock: clock.Real(), stdin: &bytes.Buffer{}, stdout: &stdout, stderr: &stderr, signals: sig}
	return a.run(args), stdout.String(), stderr.String()
}

// Promise: every command has a --json whose output is one JSON object, successful or tried with --dry-run.
func TestEveryCommandsJSONIsOneObject(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w, err := keyline.NewWorker(db.Pool(), keyline.Config{Name: "w1", Lease: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)}, poisonedOwn()...)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = w.Stop(t.Context()) }()
	root := (&app{}).root()
	seen := map[string]bool{}
	for _, l := range jsonLines {
		args := strings.Fields(l.line)
		cmd, _, err := root.Find(args)
		if err != nil {
			t.Fatal(err)
		}
		seen[strings.Join(pathOf(cmd), " ")] = true
		switch l.line {
		case "why order:1":
			await(t, db, "select count(*) = 1 from keyline.dead_letters where status = 'open'")
			await(t, db, "select count(*) = 1 from keyline.checkpoints where state = 'backoff'")
		case "events retry " + delayed + " --yes", "skip order:2 waits --yes --reason test":
			await(t, db, "select count(*) = 1 from keyline.checkpoints where state = 'backoff'")
		case "dead-letters resolve --all --yes --reason test":
			await(t, db, "select count(*) = 1 from keyline.dead_letters where status = 'open'")
		case "outbox probe --settings testdata/outbox.yaml":
			_, err := db.Pool().Exec(t.Context(), `create table outbox (id bigint generated always as identity primary key,
				created_at timestamptz not null default clock_timestamp(), event_type text not null, payload jsonb not null, processed_at timestamptz)`)
			if err != nil {
				t.Fatal(err)
			}
		case "consumers retire parks --yes --reason test":
			await(t, db, "select sweep is null from keyline.consumers where name = 'parks'")
		}
		args = append(args, "--database-url", db.URL, "--json")
		if cmd.Flags().Lookup("dry-run") != nil {
			oneObject(t, exitOK, append(slices.Clone(args), "--dry-run")...)
		}
		oneObject(t, l.exit, args...)
	}
	walk(root, func(c *cobra.Command) {
		path := strings.Join(pathOf(c), " ")
		script, known := elsewhere[path]
		switch {
		case seen[path] || c.Name() == "help":
		case known:
			text, err := os.ReadFile(filepath.Join("testdata", script+".txtar"))
			if err != nil || !slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
				return strings.Contains(line, " keyline "+path+" ") && strings.Contains(line, "--json")
			}) {
				t.Errorf("nothing in %s reads the JSON of %s: %v", script, path, err)
			}
		case path == "worker" || path == "api":
			// Serve until they are told to end: what they say is their log.
		case !c.HasAvailableSubCommands():
			t.Errorf("no case reads the JSON of %s", path)
		}
	})
}

// await waits until a query says yes.
func await(t *testing.T, db *testdb.DB, query string) {
	t.Helper()
	testdb.Eventually(t, func() bool {
		var yes bool
		if err := db.Pool().QueryRow(t.Context(), query).Scan(&yes); err != nil {
			t.Fatal(err)
		}
		return yes
	}, query)
}

// oneObject runs a command line, whose standard output must be one JSON object on one line.
func oneObject(t *testing.T, exit int, args ...string) {
	t.Helper()
	code, out, talk := runApart(poisonedOwn(), args...)
	if code != exit {
		t.Errorf("keyline %s: exit code %d, want %d: %s%s", strings.Join(args, " "), code, exit, out, talk)
		return
	}
	if code != exitOK && out == "" {
		return
	}
	d := json.NewDecoder(strings.NewReader(out))
	var v map[string]any
	if err := d.Decode(&v); err != nil || d.Decode(new(any)) != io.EOF || strings.Count(out, "\n") != 1 {
		t.Errorf("keyline %s: no JSON object on one line (%v): %s", strings.Join(args, " "), err, out)
	}
}
