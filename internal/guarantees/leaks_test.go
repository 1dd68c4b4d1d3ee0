package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryPackageLooksForLeaks: the tests of each package end with a look for
// goroutines that were left behind, by goleak or by testdb.Main, which uses it.
func TestEveryPackageLooksForLeaks(t *testing.T) {
	looks := map[string]bool{} // by directory
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, statErr := os.Stat(filepath.Join(path, "go.mod"))
			if path != "../.." && (statErr == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return fs.SkipDir // a module of its own, or no code
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		dir := filepath.Dir(path)
		looks[dir] = looks[dir] || bytes.Contains(text, []byte("goleak.VerifyTestMain(")) || bytes.Contains(text, []byte("testdb.Main(")) ||
			bytes.Contains(text, []byte("testdb.Runner{")) || strings.HasSuffix(dir, "internal/testdb") && bytes.Contains(text, []byte("Main("))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(looks) < 20 {
		t.Errorf("only %d packages have tests", len(looks))
	}
	for dir, ok := range looks {
		if !ok {
			t.Errorf("%s: its tests do not look for goroutines left behind", dir)
		}
	}
}
