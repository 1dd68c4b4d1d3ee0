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
// does, until it answers with this status, and leaves the answer in the file "answer".
func (b *background) get(ts *testscript.TestScript, _ bool, args []string) {
	b.request(ts, args[0], args[1], "", args[2:])
}

// bearer NAME TOKEN METHOD PATH CODE does that with the admin API, as the bearer of a token. What is no GET sends {}.
func (b *background) bearer(ts *testscript.TestScript, _ bool, args []string) {
	b.request(ts, args[0], "api", args[1], args[2:])
}

func (b *background) request(ts *testscript.TestScript, name, listener, token string, args []string) {
	method, path, want := args[0], args[1], args[2]
	b.awaitText(ts, false, []string{name, `"serving ` + listener + `"`})
	var url string
	for line := range strings.Lines(ts.ReadFile(name + ".err")) {
		var entry struct{ Msg, URL string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "serving "+listener {
			url = entry.URL
		}
	}
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		ts.Fatalf("served at %q", url)
	}
	var got, body string
	until(ts, func() bool {
		got, body = request(ts, method, url+path, token)
		return got == want
	}, func() bool { return false }, func() string { return method + " " + path + " answers " + got + ": " + body })
	ts.Check(os.WriteFile(ts.MkAbs("answer"), []byte(body), 0o600))
}

func request(ts *testscript.TestScript, method, url, token string) (code, body string) {
	var sent io.Reader
	if token != "" && method != http.MethodGet {
		sent = strings.NewReader("{}")
	}
	request, err := http.NewRequest(method, url, sent)
	ts.Check(err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Content-Type", "application/json")
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	ts.Check(err)
	text, err := io.ReadAll(response.Body)
	ts.Check(err)
	ts.Check(response.Body.Close())
	return strconv.Itoa(response.StatusCode), string(text)
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
