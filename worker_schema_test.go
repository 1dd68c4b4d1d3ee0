package keyline_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
	"github.com/keylinehq/keyline/migrations"
)

// Promise: a worker under which the schema is migrated to a version that serves it no more claims nothing
// from then on, ends what runs, hands back the rest, and says why it ended.
func TestAWorkerThatTheSchemaServesNoMoreDrainsAndSaysSo(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	begun, release := make(chan struct{}), make(chan struct{})
	var log bytes.Buffer // read when the worker has ended
	w := must(keyline.NewWorker(db.Pool(), keyline.Config{Lease: shortLease, Logger: slog.New(slog.NewTextHandler(&log, nil))}, keyline.Consumer{
		Name: "c", Types: []string{"*"}, Effect: keyline.None(), MaxInFlight: 1,
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			s.add(d)
			if s.count() == 1 {
				close(begun)
				<-release
			}
			return nil
		}}))(t)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(t.Context()) }()
	<-w.Ready()
	appendN(t, db, "thing:1", 1)
	<-begun
	appendN(t, db, "thing:2", 1) // it waits for the one slot

	exec(t, db.Pool(), "update keyline.meta set oldest_binary = 99")
	// Before that the slot, once free, could still go to what waits for it.
	testdb.Eventually(t, func() bool { return w.Health().State == "stopping" && freed(t, db) == 1 }, "the worker drains and hands back what waits")
	close(release)
	if err := <-ended; !errors.Is(err, migrations.ErrNewer) || !strings.Contains(err.Error(), "serves binaries from version 99 on") {
		t.Errorf("Run: %v", err)
	}
	if _, err := w.Stop(t.Context()); !errors.Is(err, migrations.ErrNewer) {
		t.Errorf("Stop: %v", err)
	}
	if !strings.Contains(log.String(), "level=ERROR msg=\"keyline worker drains: the schema does not serve it any more\"") {
		t.Errorf("log: %s", log.String())
	}
	if got := s.of("c", "thing:1"); len(got) != 1 || s.count() != 1 {
		t.Errorf("%d deliveries of %d are the running one", len(got), s.count())
	}
	if n := freed(t, db); n != 1 {
		t.Errorf("%d records were handed back", n)
	}
	if status := scalar[string](t, db.Pool(), "select status from keyline.workers"); status != "left" {
		t.Errorf("the worker is %s", status)
	}
}

// Promise: a newer schema that serves the worker does not end it.
func TestAWorkerGoesOnUnderANewerSchemaThatServesIt(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newSeen()
	w := startWorker(t, db, keyline.Config{Lease: shortLease}, recording(s, "c"))
	exec(t, db.Pool(), "update keyline.schema_version set version = version + 1")
	before := scalar[int64](t, db.Pool(), "select beat from keyline.workers")
	testdb.Eventually(t, func() bool { return scalar[int64](t, db.Pool(), "select beat from keyline.workers") >= before+3 }, "it renews")
	appendN(t, db, "thing:1", 1)
	s.wait(t, 1)
	if h := w.Health(); h.State != "running" {
		t.Errorf("the worker is %s", h.State)
	}
}
