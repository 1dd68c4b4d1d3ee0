package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// get NAME LISTENER METHOD PATH CODE asks what a program serves, wherever its log says that it
// does, wants this status, and leaves the answer in the file "answer".
func (b *background) get(ts *testscript.TestScript, _ bool, args []string) {
	name, listener, method, path, want := args[0], args[1], args[2], args[3], args[4]
	b.awaitText(ts, false, []string{name, `"serving ` + listener + `"`})
	var url string
	for line := range strings.Lines(ts.ReadFile(name + ".err")) {
		var entry struct{ Msg, URL string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "serving "+listener {
			url = entry.URL
		}
	}
	request, err := http.NewRequest(method, url+path, nil)
	ts.Check(err)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	ts.Check(err)
	body, err := io.ReadAll(response.Body)
	ts.Check(err)
	ts.Check(response.Body.Close())
	ts.Check(os.WriteFile(ts.MkAbs("answer"), body, 0o600))
	if got := strconv.Itoa(response.StatusCode); got != want {
		ts.Fatalf("%s %s: %s, want %s: %s", method, path, got, want, body)
	}
	if url != "" && !strings.HasPrefix(url, "http://127.0.0.1:") {
		ts.Fatalf("served at %s", url)
	}
}

// serves ANSWER FILE… wants every metric that these files of deploy/ name in an answer of /metrics.
func serves(ts *testscript.TestScript, _ bool, args []string) {
	answer := ts.ReadFile(args[0])
	for _, file := range args[1:] {
		text, err := os.ReadFile(filepath.Join("..", "deploy", file)) // this process is where the package is
		ts.Check(err)
		names := regexp.MustCompile(`\b(keyline|messaging)_[a-z_]+(_total|_bucket|_ratio|_seconds|_open|_blocked|_records)\b`).FindAllString(string(text), -1)
		if len(names) == 0 {
			ts.Fatalf("%s names no metric", file)
		}
		for _, name := range names {
			if !strings.Contains(answer, "\n"+name+"{") {
				ts.Fatalf("%s names %s, which nobody serves", file, name)
			}
		}
	}
}
