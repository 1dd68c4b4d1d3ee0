package migrations

import (
	"context"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
)

// Release is a binary that carries other migrations than this one.
type Release struct{ release }

// ReleaseOf makes one.
func ReleaseOf(files fs.FS) Release {
	r := Release{ours}
	r.files = files
	return r
}

// WithPatience says how often it tries, and for how long.
func (r Release) WithPatience(pause, patience time.Duration) Release {
	r.pause, r.patience = pause, patience
	return r
}

func (r Release) Up(ctx context.Context, conn *pgx.Conn) (from, to int32, err error) {
	return r.up(ctx, conn, DefaultSchema)
}

func (r Release) Read(ctx context.Context, conn *pgx.Conn) (Status, error) {
	return r.read(ctx, conn, DefaultSchema)
}
