package crm_test

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// Promise: what is to be copied can be: it needs nothing that another module
// may not import.
func TestWhatIsToBeCopiedImportsNothingInternal(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{".", "../httpapi", "../cmd/crm"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range parsed.Imports {
				if strings.Contains(i.Path.Value, "/internal/") {
					t.Errorf("%s imports %s", file, i.Path.Value)
				}
			}
		}
	}
}
