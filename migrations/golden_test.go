package migrations_test

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/migrations"
)

var update = flag.Bool("update", false, "write schema.golden anew")

// goldenFile is what a database looks like after all migrations.
const goldenFile = "schema.golden"

// dump describes a schema under the default name, so that dumps of schemas of
// different names compare.
func dump(t *testing.T, conn *pgx.Conn, schema string) string {
	t.Helper()
	text, err := testdb.DumpSchema(t.Context(), conn, schema)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(text, schema, migrations.DefaultSchema)
}

func golden(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(goldenFile)
	if errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%v: `go test ./migrations -run TestGoldenSchema -update` writes it", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func up(t *testing.T, conn *pgx.Conn, schema string) (from, to int32) {
	t.Helper()
	from, to, err := migrations.Up(t.Context(), conn, schema)
	if err != nil {
		t.Fatal(err)
	}
	return from, to
}

// equal fails with the lines that differ: a schema is too long to read twice.
func equal(t *testing.T, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	t.Error("the schema is not the golden one; if it should be: `go test ./migrations -run TestGoldenSchema -update`")
	missing, added := without(want, got), without(got, want)
	for _, line := range missing {
		t.Log("-", line)
	}
	for _, line := range added {
		t.Log("+", line)
	}
	if len(missing)+len(added) == 0 {
		t.Log("the lines are the same, their order is not")
	}
}

// without returns the lines of a that b does not have, as often as it lacks them.
func without(a, b string) (lines []string) {
	count := map[string]int{}
	for line := range strings.Lines(b) {
		count[line]++
	}
	for line := range strings.Lines(a) {
		if count[line]--; count[line] < 0 {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return lines
}

func TestGoldenSchema(t *testing.T) {
	t.Parallel()
	conn := testdb.NewEmpty(t).Connect()
	up(t, conn, migrations.DefaultSchema)
	got := dump(t, conn, migrations.DefaultSchema)
	if *update {
		if err := os.WriteFile(goldenFile, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, got, golden(t))
}
