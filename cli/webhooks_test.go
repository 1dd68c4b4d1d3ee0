package cli

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
)

// receiver is an endpoint for scripts. It writes a settings file that names it, hooks.yaml, and each request
// to standard output: the event, whether its signature holds, and what it answers. An event of the type order.gone is answered by 410,
// one of order.flaky by 500 twice and then by 200.
func receiver() int {
	var lc net.ListenConfig
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	listener, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("HOOK_SECRET"), "whsec_"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var (
		mu   sync.Mutex
		seen = map[string]int{}
	)
	server := &http.Server{ReadHeaderTimeout: headerTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		var e struct{ ID, Type, Subject, Sequence string }
		_ = json.Unmarshal(body, &e)
		mac := hmac.New(sha256.New, key)
		_, _ = fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), body)
		signed := r.Header.Get("webhook-signature") == "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil))
		seen[e.ID]++
		code := http.StatusOK
		switch {
		case e.Type == "order.gone":
			code = http.StatusGone
		case e.Type == "order.flaky" && seen[e.ID] < 3:
			code = http.StatusInternalServerError
		}
		fmt.Printf("%s #%s %s attempt %s signed %v answered %d\n", e.Subject, e.Sequence, e.Type, r.Header.Get("Keyline-Attempt"), signed, code)
		w.WriteHeader(code)
	})}
	if err := os.WriteFile("hooks.yaml", fmt.Appendf(nil, hooksFile, listener.Addr()), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "receiver listens")
	go func() {
		<-stop
		_ = server.Close()
	}()
	_ = server.Serve(listener)
	return 0
}

// hooksFile are settings of a worker with that endpoint.
const hooksFile = `
poll-interval: 200ms
webhooks:
  - name: hook
    types: ["order.*"]
    url: http://%s/in
    allow_http: true
    allow_addresses: [127.0.0.1/32]
    secrets: [{env: HOOK_SECRET}]
    retry: [100ms, 100ms, 100ms]
    on_dead: park
`
