package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/keylinehq/keyline/internal/testdb"
)

// words splits a line as a shell does, as far as the documents go.
func words(line string) []string {
	var list []string
	for _, m := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(line, -1) {
		list = append(list, m[1]+m[2])
	}
	return list
}

// Promise: whoever follows docs/adopting.md, from top to bottom, gets there.
func TestTheAdoptionPageRuns(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	conn := db.Connect()
	page, err := os.ReadFile("../docs/adopting.md")
	if err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(t.TempDir(), "outbox.yaml")
	steps := 0
	for _, m := range regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```").FindAllStringSubmatch(string(page), -1) {
		switch kind, text := m[1], m[2]; kind {
		case "yaml":
			if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		case "sql":
			if _, err := conn.Exec(t.Context(), text); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		case "sh":
			for line := range strings.Lines(text) {
				args := words(strings.ReplaceAll(line, "outbox.yaml", settings))
				code, out, talk := runApart(nil, append(args[1:], "--database-url", db.URL)...)
				if code != exitOK {
					t.Fatalf("%s: exit code %d: %s%s", line, code, out, talk)
				}
				t.Logf("%s%s", line, out)
				steps++
			}
		default:
			t.Fatalf("a block of %s, which nobody runs", kind)
		}
		if strings.Contains(m[2], "called back") {
			var handed int
			err := conn.QueryRow(t.Context(), `select count(*) from keyline.events e join keyline.records r on r.id = e.record_id where r.record_key = 'activity:42'`).Scan(&handed)
			if err != nil || handed != 2 { // the old drainer had the first
				t.Fatalf("%d events after the cut-over: %v", handed, err)
			}
		}
	}
	if steps < 9 {
		t.Fatalf("only %d steps", steps)
	}
	var left int
	err = conn.QueryRow(t.Context(), `select count(*) from pg_proc where proname like 'outbox\_keyline\_%'`).Scan(&left)
	if err != nil || left != 0 {
		t.Fatalf("%d functions are left: %v", left, err)
	}
}
