package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// screen is where frames are shown: over each other on a terminal, one after the other elsewhere.
type screen struct {
	out  io.Writer
	live bool // a terminal that is ours until close
	size func() (width, height int)
	quit <-chan struct{} // closed when somebody presses q or Ctrl-C; nil: never
	undo func()
}

// What a terminal is told: another page without a cursor, and back; top left; erase the rest of the line, and of the page.
const (
	enterPage, leavePage = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	topLeft, restOfLine  = "\x1b[H", "\x1b[K"
	restOfPage           = "\x1b[J"
)

// screen takes the terminal, where there is one on both ends and more than one frame is to be shown.
func (a *app) screen(s topSettings) *screen {
	plain := &screen{out: a.stdout}
	out, isFile := a.stdout.(*os.File)
	in, fromFile := a.stdin.(*os.File)
	if a.global.json || s.once || !isFile || !fromFile || !isTerminal(a.stdout) || !term.IsTerminal(int(in.Fd())) {
		return plain
	}
	state, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return plain
	}
	return live(out, in, func() (int, int) {
		w, h, err := term.GetSize(int(out.Fd()))
		if err != nil {
			return 80, 24
		}
		return w, h
	}, func() { _ = term.Restore(int(in.Fd()), state) })
}

// live shows frames on a terminal that sends its keys to in.
func live(out io.Writer, in io.Reader, size func() (int, int), undo func()) *screen {
	quit := make(chan struct{})
	// It reads until a key ends it or the process ends: a terminal's read cannot be cancelled.
	go func() {
		key := make([]byte, 1)
		for {
			if n, err := in.Read(key); err != nil {
				return
			} else if n == 1 && (key[0] == 'q' || key[0] == 'Q' || key[0] == 3) {
				close(quit)
				return
			}
		}
	}()
	_, _ = io.WriteString(out, enterPage)
	return &screen{out: out, live: true, size: size, quit: quit, undo: undo}
}

func (s *screen) close() {
	if s.live {
		_, _ = io.WriteString(s.out, leavePage)
		s.undo()
	}
}

// show shows a frame; on a terminal cut to its size.
func (s *screen) show(frame string) error {
	if !s.live {
		_, err := io.WriteString(s.out, frame)
		if err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		return nil
	}
	width, height := s.size()
	lines := strings.Split(strings.TrimRight(frame, "\n"), "\n")
	var b strings.Builder
	b.WriteString(topLeft)
	for i, line := range lines[:min(len(lines), max(height-1, 1))] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(cut(line, width))
		b.WriteString(restOfLine)
	}
	b.WriteString("\r\n" + restOfPage)
	if _, err := io.WriteString(s.out, b.String()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// note shows an error in the last line, and leaves the last frame.
func (s *screen) note(err error) {
	width, height := s.size()
	text := strings.ReplaceAll(printable(err.Error()), "\n", " ")
	_, _ = fmt.Fprintf(s.out, "\x1b[%d;1H%s%s", height, cut("! "+text, width), restOfLine)
}

// cut leaves out what is beyond so many cells, each rune being one.
func cut(line string, width int) string {
	runes := []rune(line)
	if len(runes) <= width {
		return line
	}
	return string(runes[:max(width, 0)])
}
