package keyline

import (
	"context"
	"fmt"
	"sync"

	"github.com/keylinehq/keyline/store"
)

// running are the workers of this process. The rule that it guards is about
// the process, so it is the process's.
var running = struct {
	sync.Mutex
	names map[store.Identity][]string
}{names: map[store.Identity][]string{}}

// guard refuses a second loop on the same database and schema in one process,
// unless it names the worker that it runs beside.
func (w *Worker) guard(ctx context.Context, s *store.Store) (release func(), err error) {
	key, err := s.Identity(ctx)
	if err != nil {
		return nil, err
	}
	running.Lock()
	defer running.Unlock()
	for _, name := range running.names[key] {
		if w.cfg.Beside != name {
			return nil, fmt.Errorf("keyline: worker %q already runs in this process on schema %s of the same database; "+
				"set Config.Beside to its name if a second one is meant: %w", name, key.Schema, ErrConflict)
		}
	}
	running.names[key] = append(running.names[key], w.cfg.Name)
	return func() {
		running.Lock()
		defer running.Unlock()
		for i, name := range running.names[key] {
			if name == w.cfg.Name {
				running.names[key] = append(running.names[key][:i], running.names[key][i+1:]...)
				break
			}
		}
		if len(running.names[key]) == 0 {
			delete(running.names, key)
		}
	}, nil
}
