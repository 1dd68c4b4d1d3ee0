package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// What a document shows is between backquotes, or a line of a block; what follows a # is said of it.
var (
	inlineCommand = regexp.MustCompile("`(?:bin/)?(keyline [a-z][^`\n]*)`")
	blockCommand  = regexp.MustCompile(`(?m)^(?:bin/)?(keyline [a-z].*)$`)
	remark        = regexp.MustCompile(`\s#\s.*$`)
	// word is one of a command line: quoted, or without blanks.
	word = regexp.MustCompile(`'[^']*'|\S+`)
)

// documentedCommands are the command lines that a text shows.
func documentedCommands(text string) (lines []string) {
	for _, e := range []*regexp.Regexp{inlineCommand, blockCommand} {
		for _, m := range e.FindAllStringSubmatch(text, -1) {
			lines = append(lines, remark.ReplaceAllString(m[1], ""))
		}
	}
	return lines
}

// Promise: whoever follows the documents at night finds each command and each flag that they name, with as many arguments.
func TestEveryCommandOfTheDocumentsIsThere(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range append(files, "../README.md", "../deploy/prometheus/rules.yml", "../deploy/kubernetes/kustomization.yaml") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range documentedCommands(string(text)) {
			n++
			if problem := unknown((&app{}).root(), line); problem != "" {
				t.Errorf("%s: %s: %s", file, line, problem)
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d command lines were found", n)
	}
}

// unknown says what of a command line the program does not know, "" if nothing.
func unknown(root *cobra.Command, line string) string {
	if line == "keyline man" {
		return "" // fang adds it when it runs
	}
	var words []string
	for _, w := range word.FindAllString(line, -1) {
		// What is in brackets may be left out; of alternatives each is shown, and the first is looked for. A > begins what the shell does.
		if w == ">" || w == "|" {
			break
		}
		w, _, _ = strings.Cut(strings.Trim(w, "[]'"), "|")
		words = append(words, w)
	}
	root.InitDefaultHelpFlag()
	cmd, rest, err := root.Find(words[1:])
	switch {
	case err != nil:
		return err.Error()
	case cmd == root:
		return "there is no such command"
	case cmd.HasAvailableSubCommands() && len(rest) > 0 && strings.ToUpper(rest[0]) != rest[0] && !strings.HasPrefix(rest[0], "-"):
		return "there is no such command"
	}
	cmd.InitDefaultHelpFlag()
	for _, w := range rest {
		name, isFlag := strings.CutPrefix(w, "--")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
			return "there is no flag --" + name
		}
	}
	// A flag that is only named has no value, and a value can be a word for it; arguments there may be none, but not too many.
	if err := cmd.ParseFlags(rest); err != nil && !strings.Contains(err.Error(), "invalid argument") && !strings.Contains(err.Error(), "needs an argument") {
		return err.Error()
	}
	if args := cmd.Flags().Args(); len(args) > 0 && cmd.Args != nil {
		if err := cmd.Args(cmd, args); err != nil {
			return err.Error()
		}
	}
	return ""
}

func TestADocumentedCommandThatIsNotThereIsFound(t *testing.T) {
	t.Parallel()
	for line, right := range map[string]bool{
		"keyline why KEY [--tenant T]":   true,
		"keyline consumers retire NAME":  true,
		"keyline nothing":                false,
		"keyline consumers nothing NAME": false,
		"keyline why KEY --nothing":      false,
		"keyline show KEY OTHER":         false,
	} {
		if problem := unknown((&app{}).root(), line); (problem == "") != right {
			t.Errorf("%s: %q", line, problem)
		}
	}
	if got := documentedCommands("say `keyline show KEY`, or\n\nkeyline top # looks\n"); !slices.Equal(got, []string{"keyline show KEY", "keyline top"}) {
		t.Errorf("%q", got)
	}
}
