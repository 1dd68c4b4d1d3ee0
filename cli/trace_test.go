package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// jaegerDouble FILE… serves, until the script ends, what a Jaeger answers: a file named as the trace's id for a
// trace, "found" for a search, "services" for the services; and 404 as Jaeger does for what it has no file of.
// KEYLINE_JAEGER_URL names it, and the file "asked" has its searches.
func jaegerDouble(ts *testscript.TestScript, _ bool, args []string) {
	var mu sync.Mutex
	answers := map[string]string{}
	for _, file := range args {
		answers[file] = ts.ReadFile(file)
	}
	asked := ts.MkAbs("asked")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		name := strings.TrimPrefix(r.URL.Path, "/api/v3/")
		if name == "traces" {
			name = "found"
			f, err := os.OpenFile(asked, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err == nil {
				_, _ = fmt.Fprintln(f, r.URL.RawQuery)
				_ = f.Close()
			}
		}
		answer, ok := answers[strings.TrimPrefix(name, "traces/")]
		if !ok {
			http.Error(w, `{"error":{"httpCode":404,"message":"No traces found"}}`, http.StatusNotFound)
			return
		}
		_, _ = fmt.Fprint(w, answer)
	}))
	ts.Defer(server.Close)
	ts.Setenv("KEYLINE_JAEGER_URL", server.URL)
}
