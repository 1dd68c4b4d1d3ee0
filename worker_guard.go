package keyline

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline/store"
)

// loop names the deliveries of one installation: a database's cluster id and
// the schema.
type loop struct {
	cluster uuid.UUID
	schema  string
}

// running are the workers of this process. The rule that it guards is about
// the process, so it is the process's.
var running = struct {
	sync.Mutex
	names map[loop][]string
}{names: map[loop][]string{}}

// guard refuses a second loop on the same database and schema in one process,
// unless it names the worker that it runs beside.
func (w *Worker) guard(ctx context.Context, s *store.Store) (release func(), err error) {
	id, err := s.ClusterID(ctx)
	if err != nil {
		return nil, err
	}
	key := loop{id, s.Schema()}
	running.Lock()
	defer running.Unlock()
	for _, name := range running.names[key] {
		if w.cfg.Beside != name {
			return nil, fmt.Errorf("keyline: worker %q already runs in this process on schema %s of the same database; "+
				"set Config.Beside to its name if a second one is meant: %w", name, key.schema, ErrConflict)
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
