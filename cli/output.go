package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	"golang.org/x/term"
)

// printJSON writes one JSON object on one line.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// talk writes a line to standard error.
func (a *app) talk(format string, args ...any) {
	_, _ = fmt.Fprintf(a.stderr, format+"\n", args...)
}

// print writes a line to standard output.
func (a *app) print(format string, args ...any) error {
	if _, err := fmt.Fprintf(a.stdout, format+"\n", args...); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// printTable writes rows under headers, without frames, so that it reads well
// and cuts well.
func (a *app) printTable(headers []string, rows [][]string) error {
	return writeTable(a.stdout, headers, rows)
}

func writeTable(w io.Writer, headers []string, rows [][]string) error {
	head := lipgloss.NewStyle().Bold(true).PaddingRight(2)
	cell := lipgloss.NewStyle().PaddingRight(2)
	t := table.New().Headers(headers...).Wrap(false).
		BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).
		BorderColumn(false).BorderRow(false).BorderHeader(false).
		StyleFunc(func(row, _ int) lipgloss.Style {
			if row == table.HeaderRow {
				return head
			}
			return cell
		})
	for _, r := range rows {
		clean := make([]string, len(r))
		for i, c := range r {
			clean[i] = line(c)
		}
		t.Row(clean...)
	}
	var b strings.Builder
	for line := range strings.Lines(t.String() + "\n") {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	// Fprint leaves colours out where w is no terminal.
	if _, err := lipgloss.Fprint(w, b.String()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// printable makes control characters visible: record keys, error texts and
// notes come from others, and a terminal obeys them.
func printable(s string) string {
	if strings.IndexFunc(s, hidden) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// line is a text on one line, where a line break would pass for the next one.
func line(s string) string { return strings.ReplaceAll(printable(s), "\n", `\n`) }

func hidden(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// when is a time for people, who do not need its microseconds.
func when(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// list is a list for people.
func list(items []string) string {
	if len(items) == 0 {
		return "-"
	}
	return strings.Join(items, ",")
}
