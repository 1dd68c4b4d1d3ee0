package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/keylinehq/keyline/internal/clock"
)

// Promise: a profile lasts as long as it was asked to, however short the bounds of other answers are.
func TestAProfileLastsAsLongAsItWasAskedTo(t *testing.T) {
	t.Parallel()
	const bound = 50 * time.Millisecond
	for name, path := range map[string]string{"profile": "/debug/pprof/profile?seconds=1", "trace": "/debug/pprof/trace?seconds=1"} {
		server := httptest.NewUnstartedServer(nil)
		server.Config = bounded(profiles(), true, bound)
		server.Start()
		now := clock.Real()
		began := now.Mono()
		answer, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, answer.Body)
		if took := now.Mono() - began; err != nil || answer.StatusCode != http.StatusOK || took < time.Second {
			t.Errorf("%s: %s, cut after %s: %v", name, answer.Status, took, err)
		}
		_ = answer.Body.Close()
		server.Close()
	}
	if s := bounded(profiles(), false, bound); s.ReadTimeout != bound || s.WriteTimeout != bound {
		t.Errorf("what is public is not bounded: %+v", s)
	}
}
