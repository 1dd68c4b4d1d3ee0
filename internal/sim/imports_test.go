package sim

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

const (
	module    = "github.com/keylinehq/keyline"
	decisions = module + "/actors/delivery"
)

// TestTheSimulatorRunsTheLiveCode: what decides about deliveries is one package
// without variants. Live machines and the simulator's are made by the same
// function of it, outcomes are judged by the same, and a worker chooses no other.
func TestTheSimulatorRunsTheLiveCode(t *testing.T) {
	if p := list(t, decisions); len(p.IgnoredGoFiles) > 0 || len(p.GoFiles) == 0 {
		t.Errorf("%s is not the same in every build: %v are left out of this one", decisions, p.IgnoredGoFiles)
	}
	for path, want := range map[string][]string{
		module + "/internal/sim": {"New", "Decide"},
		module + "/supervisor":   {"New"},
		module:                   {"Decide"},
	} {
		used := uses(t, list(t, path))
		for _, name := range want {
			if !slices.Contains(used, name) {
				t.Errorf("%s does not use %s.%s, only %v", path, decisions, name, used)
			}
		}
	}
	for _, dep := range []string{decisions, module + "/actors", module + "/supervisor"} {
		if !slices.Contains(list(t, module).Deps, dep) {
			t.Errorf("the worker is built without %s", dep)
		}
	}
	for _, file := range parse(t, list(t, module)) {
		ast.Inspect(file, func(n ast.Node) bool {
			if kv, ok := n.(*ast.KeyValueExpr); ok {
				if key, ok := kv.Key.(*ast.Ident); ok && key.Name == "Machine" {
					t.Error("the worker chooses its machines itself")
				}
			}
			return true
		})
	}
}

// goPackage is what go list says of a package. Its files are those that are built; tests are not among them.
type goPackage struct {
	Dir                           string
	GoFiles, IgnoredGoFiles, Deps []string
}

func list(t *testing.T, path string) (p goPackage) {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=Dir,GoFiles,IgnoredGoFiles,Deps", path).Output()
	if err != nil {
		t.Fatalf("go list %s: %v", path, err)
	}
	if err := json.Unmarshal(out, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func parse(t *testing.T, p goPackage) (files []*ast.File) {
	t.Helper()
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// uses are the names of the decisions that a package's own files use.
func uses(t *testing.T, p goPackage) (names []string) {
	t.Helper()
	for _, file := range parse(t, p) {
		if !slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
			path, err := strconv.Unquote(i.Path.Value)
			return err == nil && path == decisions && i.Name == nil
		}) {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "delivery" {
					names = append(names, sel.Sel.Name)
				}
			}
			return true
		})
	}
	return names
}
