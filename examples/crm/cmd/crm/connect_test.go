package main

import (
	"io"
	"log/slog"
	"strings"
	"testing"
)

func TestAnUnreadableConnectionStringIsNotShown(t *testing.T) {
	for url, want := range map[string]string{
		"":                                     "-database-url",
		"postgres://crm:se cret@127.0.0.1/crm": "cannot be read",
		"host=127.0.0.1 password = 'secret user=crm": "cannot be read",
	} {
		for _, command := range []string{"migrate", "serve", "worker"} {
			err := run(t.Context(), slog.New(slog.NewTextHandler(io.Discard, nil)), []string{command, "-database-url", url})
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "cret") {
				t.Errorf("%s of %q: %v", command, url, err)
			}
		}
	}
}
