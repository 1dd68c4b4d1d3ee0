package supervisor

import (
	"context"
	"log/slog"
)

// quiet passes warnings and errors on, and nothing below: the actor library
// logs every failure that supervision handles.
type quiet struct{ h slog.Handler }

func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && q.h.Enabled(ctx, l)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error { return q.h.Handle(ctx, r) }
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler        { return quiet{q.h.WithAttrs(attrs)} }
func (q quiet) WithGroup(name string) slog.Handler              { return quiet{q.h.WithGroup(name)} }
