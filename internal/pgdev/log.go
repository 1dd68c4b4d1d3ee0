package pgdev

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// logFile is the server's log, and the place in it where this start began.
type logFile struct {
	file *os.File
	from int64
}

func openLog(path string) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of PostgreSQL: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open the log of PostgreSQL: %w", err)
	}
	return &logFile{file: f, from: info.Size()}, nil
}

func (l *logFile) close() { _ = l.file.Close() }

// tail is what has been logged since, at most its last few lines, to be put
// behind an error message.
func (l *logFile) tail() string {
	content, err := io.ReadAll(io.NewSectionReader(l.file, l.from, 1<<20))
	text := strings.TrimSpace(string(content))
	if err != nil || text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	return "; its log says:\n" + strings.Join(lines[max(0, len(lines)-15):], "\n")
}
