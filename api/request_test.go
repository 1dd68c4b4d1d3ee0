package api_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/api"
	"github.com/keylinehq/keyline/internal/clock"
)

func TestATokenThatHasEndedLetsNobodyIn(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	get := func(secret string) answer {
		return ask(t.Context(), r.handler, secret, http.MethodGet, "/v1/whoami", "")
	}
	short := must(r.admin.CreateToken(t.Context(), keyline.NewToken{Name: "short", Role: keyline.RoleViewer, ExpiresIn: time.Hour}, ""))(t)
	if a := get(short.Secret); a.code != http.StatusOK || a.value(t)["name"] != "short" || a.value(t)["live"] != true {
		t.Errorf("%d %s", a.code, a.body)
	}
	if strings.Contains(get(short.Secret).body, short.Secret[10:]) {
		t.Error("an answer has the secret")
	}
	// By the database's clock.
	exec(t, r.db.Pool(), "update keyline.api_tokens set expires_at = clock_timestamp() - interval '1 millisecond' where name = 'short'")
	wantProblem(t, get(short.Secret), http.StatusUnauthorized, keyline.CodeUnauthenticated)
	forever := must(r.admin.CreateToken(t.Context(), keyline.NewToken{Name: "for ever", Role: keyline.RoleViewer}, ""))(t)
	if a := get(forever.Secret); a.code != http.StatusOK || a.value(t)["expires_at"] != nil {
		t.Errorf("%d %s", a.code, a.body)
	}
	must(r.admin.RevokeToken(t.Context(), forever.ID, ""))(t)
	wantProblem(t, get(forever.Secret), http.StatusUnauthorized, keyline.CodeUnauthenticated)
	// A secret is one token's, and no part of it is enough.
	good := r.tokens["viewer"]
	for _, bad := range []string{good[:len(good)-1], good + "A", strings.ToUpper(good), good[:len(good)-1] + "!", strings.TrimPrefix(good, "kl_"), "kl_1_", "kl__", "kl_-1_" + good[5:]} {
		wantProblem(t, get(bad), http.StatusUnauthorized, keyline.CodeUnauthenticated)
	}
	// Nothing but one Authorization header carries it.
	for name, set := range map[string]func(*http.Request){
		"two": func(q *http.Request) {
			q.Header.Add("Authorization", "Bearer "+good)
			q.Header.Add("Authorization", "Bearer "+good)
		},
		"basic":  func(q *http.Request) { q.SetBasicAuth("token", good) },
		"cookie": func(q *http.Request) { q.AddCookie(&http.Cookie{Name: "token", Value: good}) },
	} {
		if code := raw(t, r.handler, http.MethodGet, "/v1/whoami", "", set).code; code != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, code)
		}
	}
}

func TestWhatIsWrongWithARequestIsSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	skip := because(`,"key":"thing:1","consumer":"waits"`)
	for _, tc := range []struct {
		method, target, body string
		status               int
		code, text           string
	}{
		{http.MethodGet, "/v1/nothing", "", 404, "not_found", "no such path"},
		{http.MethodGet, "/", "", 404, "not_found", ""},
		{http.MethodGet, "//v1/audit", "", 404, "not_found", "no such path"},
		{http.MethodPost, "/v1/events//retry", because(""), 404, "not_found", "no such path"},
		{http.MethodGet, "/v1/consumers/..", "", 404, "not_found", "no such path"},
		{http.MethodGet, "/v1/consumers/%2E%2E", "", 404, "not_found", "no consumer"},
		{http.MethodPut, "/v1/audit", "{}", 405, "invalid_request", ""},
		{http.MethodDelete, "/v1/consumers/dies", "{}", 405, "invalid_request", ""},
		{http.MethodPost, "/v1/record/skip", strings.Repeat(" ", 65<<10) + skip, 413, "too_large", ""},
		{http.MethodPost, "/v1/record/skip", "{", 400, "invalid_request", ""},
		{http.MethodPost, "/v1/record/skip", "", 400, "invalid_request", ""},
		{http.MethodPost, "/v1/record/skip", "null", 422, "invalid_request", ""},
		{http.MethodPost, "/v1/record/skip", because(`,"key":"thing:1"`), 422, "invalid_request", "consumer"},
		{http.MethodPost, "/v1/record/skip", because(`,"key":"thing:1","consumer":"waits","more":1`), 422, "invalid_request", "more"},
		{http.MethodPost, "/v1/record/skip", because(`,"key":"thing:1","consumer":"waits","wait_seconds":61`), 422, "invalid_request", "wait_seconds"},
		{http.MethodPost, "/v1/record/skip", because(`,"key":"thing\u0000","consumer":"waits"`), 422, "invalid_argument", ""},
		{http.MethodGet, "/v1/audit?limit=0", "", 422, "invalid_request", "limit"},
		{http.MethodGet, "/v1/audit?limit=1001", "", 422, "invalid_request", "limit"},
		{http.MethodGet, "/v1/audit?limits=1", "", 422, "invalid_request", "limits"},
		{http.MethodGet, "/v1/audit?cursor=nonsense", "", 422, "invalid_request", "cursor"},
		{http.MethodGet, "/v1/records?cursor=MQ", "", 422, "invalid_request", "cursor"},
		{http.MethodGet, "/v1/events/nonsense", "", 422, "invalid_request", ""},
		{http.MethodGet, "/v1/dead-letters/0", "", 422, "invalid_request", ""},
		{http.MethodGet, "/v1/dead-letters/999", "", 404, "not_found", ""},
		{http.MethodGet, "/v1/dead-letters?status=closed", "", 422, "invalid_request", "status"},
		{http.MethodGet, "/v1/record", "", 422, "invalid_request", "key"},
		{http.MethodGet, "/v1/record?key=%00", "", 422, "invalid_argument", ""},
		{http.MethodGet, "/v1/consumers/nobody", "", 404, "not_found", "nobody"},
		{http.MethodPost, "/v1/doctor", "{}", 404, "not_found", "keyline doctor"},
		{http.MethodPost, "/v1/workers/99/drain", because(""), 404, "not_found", "99"},
		{http.MethodPost, "/v1/tokens", because(`,"name":"viewer","role":"viewer"`), 409, "constraint", "given before"},
		{http.MethodPost, "/v1/tokens", because(`,"name":"x","role":"root"`), 422, "invalid_request", "role"},
		{http.MethodPost, "/v1/tokens", because(`,"name":"a\u0007","role":"viewer"`), 422, "invalid_argument", "Name"},
	} {
		name := tc.method + " " + tc.target
		a := r.ask("admin", tc.method, tc.target, tc.body)
		wantProblem(t, a, tc.status, tc.code)
		if !strings.Contains(a.body, tc.text) {
			t.Errorf("%s does not say %q: %s", name, tc.text, a.body)
		}
		if tc.status == http.StatusMethodNotAllowed && a.header.Get("Allow") == "" {
			t.Errorf("%s does not say which methods there are", name)
		}
		for header, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Access-Control-Allow-Origin": ""} {
			if got := a.header.Get(header); got != want {
				t.Errorf("%s: %s is %q", name, header, got)
			}
		}
		if strings.Contains(a.body, "SQLSTATE") || strings.Contains(a.body, "keyline.") {
			t.Errorf("%s tells of the database: %s", name, a.body)
		}
	}
}

// Without a deadline the server would wait for the rest before it answers, or before it lets the connection go.
func TestABodyThatNeverComesHoldsNoConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	api.SetBodyTimeout(r.handler, 50*time.Millisecond)
	server := httptest.NewServer(r.handler)
	t.Cleanup(server.Close)
	for _, tc := range []struct{ name, method, target, token, length, want string }{
		{"without a token", http.MethodPost, "/v1/verify", "", "Content-Length: 200", "401"},
		{"in chunks, without a token", http.MethodPost, "/v1/verify", "", "Transfer-Encoding: chunked", "401"},
		{"with a token", http.MethodPost, "/v1/verify", r.tokens["operator"], "Content-Length: 200", "400"},
		{"of a GET", http.MethodGet, "/v1/whoami", r.tokens["operator"], "Content-Length: 200", "200"},
		{"of what is alive", http.MethodGet, "/livez", "", "Content-Length: 200", "200"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if err := conn.SetDeadline(clock.Real().Now().Add(15 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n%s\r\n\r\n",
				tc.method, tc.target, tc.token, tc.length); err != nil {
				t.Fatal(err)
			}
			all, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 "+tc.want) {
				t.Errorf("%v after %q", err, all)
			}
		})
	}
}

// Who asks and reads no answer would otherwise hold the connection for ever, and the server's end with it.
func TestAnAnswerThatNobodyReadsHoldsNoConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	api.SetWriteTimeout(r.handler, 50*time.Millisecond)
	server := httptest.NewUnstartedServer(r.handler)
	// A few answers are to fill what the kernel keeps, and not megabytes of them.
	const kept = 4096
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if state != http.StateNew {
			return
		}
		if err := conn.(*net.TCPConn).SetWriteBuffer(kept); err != nil {
			t.Error(err)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	for _, tc := range []struct{ name, target, token string }{
		{"of what is alive", "/livez", ""},
		{"without a token", "/v1/whoami", ""},
		{"of no path", "/v1/nothing", r.tokens["viewer"]},
		{"with a token", "/v1/audit", r.tokens["viewer"]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if err := conn.(*net.TCPConn).SetReadBuffer(kept); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetDeadline(clock.Real().Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			text := []byte(strings.Repeat("GET "+tc.target+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+tc.token+"\r\n\r\n", 100))
			for err == nil {
				_, err = conn.Write(text)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is held")
			}
		})
	}
}

// An answer that is long in coming is given all the same, over HTTP/2 too, where a deadline ends what waits as well as what writes.
func TestAnActMayWaitLongerThanItsAnswerMayTake(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	if _, err := r.worker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	api.SetWriteTimeout(r.handler, time.Second)
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		server := httptest.NewUnstartedServer(r.handler)
		server.EnableHTTP2 = http2
		server.StartTLS()
		t.Cleanup(server.Close)
		request := must(http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("%s/v1/dead-letters/%d/retry", server.URL, r.letters[mine]),
			strings.NewReader(because(`,"wait_seconds":2`))))(t)
		request.Header.Set("Authorization", "Bearer "+r.tokens["operator"])
		request.Header.Set("Content-Type", "application/json")
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.Proto != name || response.StatusCode != http.StatusAccepted || err != nil || !strings.Contains(string(all), `"applied":false`) {
			t.Errorf("%s: %d, %v after %s", response.Proto, response.StatusCode, err, all)
		}
	}
}

// A cursor is as long as what it names, and what JSON makes of it: the next of one page is taken for another.
func TestTheCursorOfTheLongestKeyIsTaken(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	client := must(keyline.NewClient(keyline.ClientConfig{}))(t)
	for _, c := range []string{"<", "\x01", "\u2028", "\U0001F511"} {
		long := strings.Repeat(c, 511/len(c))
		for _, last := range []string{"1", "2"} {
			must(client.Append(t.Context(), r.db.Pool(), keyline.NewEvent{Key: keyline.Key{Tenant: long, Record: long + last}, Type: "x"}))(t)
		}
		first := "/v1/records?limit=1&tenant=" + url.QueryEscape(long)
		next, _ := r.ask("viewer", http.MethodGet, first, "").value(t)["next"].(string)
		a := r.ask("viewer", http.MethodGet, first+"&cursor="+next, "")
		if list, _ := a.value(t)["items"].([]any); next == "" || a.code != http.StatusOK || len(list) != 1 || list[0].(map[string]any)["record"] != long+"2" {
			t.Errorf("%q: %d behind a cursor of %d bytes: %.300s", c, a.code, len(next), a.body)
		}
	}
}

func TestListsComeInPagesThatMissNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	must(r.admin.RetryEvent(t.Context(), r.late[mine], "r"))(t)
	must(r.admin.RetryEvent(t.Context(), r.late[others], "r"))(t)
	r.awaitBackoff()
	for target, field := range map[string]string{
		"/v1/records?": "tenant", "/v1/record/events?key=thing:1&tenant=" + mine + "&": "seq", "/v1/dead-letters?": "id", "/v1/audit?": "id", "/v1/tokens?": "id",
		"/v1/consumers/waits/behind?": "tenant", "/v1/records?tenant=" + mine + "&prefix=thing&": "key",
	} {
		items := func(query string) (all []string, next string) {
			v := r.ask("admin", http.MethodGet, target+query, "").value(t)
			list, _ := v["items"].([]any)
			for _, item := range list {
				all = append(all, fmt.Sprint(item.(map[string]any)[field]))
			}
			next, _ = v["next"].(string)
			return all, next
		}
		whole, next := items("limit=1000")
		if len(whole) == 0 || next != "" {
			t.Errorf("%s: %v %q", target, whole, next)
		}
		var paged []string
		for query, pages := "limit=1", 0; ; pages++ {
			one, next := items(query)
			paged = append(paged, one...)
			if next == "" {
				break
			}
			if query = "limit=1&cursor=" + next; pages > 100 || len(one) > 1 {
				t.Fatalf("%s goes on and on: %v", target, paged)
			}
		}
		if !slices.Equal(whole, paged) {
			t.Errorf("%s: whole %v, in pages %v", target, whole, paged)
		}
	}
	// What waits longest, without pages.
	v := r.ask("viewer", http.MethodGet, "/v1/stuck?limit=1000", "").value(t)
	waits := 0
	for _, item := range v["items"].([]any) {
		if one := item.(map[string]any); one["reason"] == "backoff" && one["consumer"] == "waits" {
			waits++
		}
	}
	if one := r.ask("viewer", http.MethodGet, "/v1/stuck?limit=1", "").value(t)["items"].([]any); waits != 2 || len(one) != 1 || v["next"] != nil {
		t.Errorf("stuck: %v, one of them %v", v, one)
	}
	// For a viewer, who is not shown the internal one in the middle, nothing is missing behind it.
	client := must(keyline.NewClient(keyline.ClientConfig{}))(t)
	must(client.Append(t.Context(), r.db.Pool(), keyline.NewEvent{Key: keyline.Key{Tenant: mine, Record: "thing:1"}, Type: "last"}))(t)
	var seqs []string
	for target, next := "/v1/record/events?limit=1&tenant="+mine+"&key=thing:1", ""; ; {
		v := r.ask("viewer", http.MethodGet, target+next, "").value(t)
		for _, item := range v["items"].([]any) {
			seqs = append(seqs, fmt.Sprint(item.(map[string]any)["seq"]))
		}
		if v["next"] == nil {
			break
		}
		next = "&cursor=" + v["next"].(string)
	}
	if !slices.Equal(seqs, []string{"1", "2", "4"}) {
		t.Errorf("a viewer is shown %v", seqs)
	}
}

func TestWhoAsksTooMuchIsToldToWait(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{RequestsPerSecond: 0.001, Burst: 3})
	for range 3 {
		if a := r.ask("viewer", http.MethodGet, "/v1/whoami", ""); a.code != http.StatusOK {
			t.Fatalf("%d %s", a.code, a.body)
		}
	}
	a := r.ask("viewer", http.MethodGet, "/v1/whoami", "")
	wantProblem(t, a, http.StatusTooManyRequests, "rate_limited")
	if a.header.Get("Retry-After") == "" {
		t.Error("nothing says how long")
	}
	if a := r.ask("operator", http.MethodGet, "/v1/whoami", ""); a.code != http.StatusOK {
		t.Errorf("another token waits too: %d", a.code)
	}
	// Who fails too often from one address; whoever has a token comes in from there all the same.
	from := func(q *http.Request) { q.RemoteAddr = "192.0.2.1:99" }
	failures := 0
	for range 30 {
		if raw(t, r.handler, http.MethodGet, "/v1/whoami", "", from).code == http.StatusTooManyRequests {
			failures++
		}
	}
	if failures < 5 {
		t.Errorf("%d of 30 were told to wait", failures)
	}
	with := func(q *http.Request) { from(q); q.Header.Set("Authorization", "Bearer "+r.tokens["admin"]) }
	if a := raw(t, r.handler, http.MethodGet, "/v1/whoami", "", with); a.code != http.StatusOK {
		t.Errorf("%d %s", a.code, a.body)
	}
}

func TestAnActThatNobodyAppliesIsAccepted(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	if _, err := r.worker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	target, body := fmt.Sprintf("/v1/dead-letters/%d/resolve", r.letters[mine]), because(`,"wait_seconds":1`)
	first, again := r.ask("operator", http.MethodPost, target, body), r.ask(mine+" operator", http.MethodPost, target, body)
	for _, a := range []answer{first, again} {
		if v := a.value(t); a.code != http.StatusAccepted || v["applied"] != false || len(v["acts"].([]any)) != 1 {
			t.Errorf("%d %s", a.code, a.body)
		}
	}
	var n int
	if err := r.db.Pool().QueryRow(t.Context(), "select count(*) from keyline.commands").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d commands, %v", n, err)
	}
}

func TestADatabaseThatDoesNotAnswerIsNotNamed(t *testing.T) {
	t.Parallel()
	pool := must(pgxpool.New(t.Context(), "postgres://someuser@127.0.0.1:1/somedb?connect_timeout=1"))(t)
	defer pool.Close()
	h := must(api.New(must(keyline.NewGate(pool, keyline.GateConfig{}))(t), api.Config{}))(t)
	a := ask(t.Context(), h, "kl_1_"+strings.Repeat("A", 43), http.MethodGet, "/v1/whoami", "")
	wantProblem(t, a, http.StatusServiceUnavailable, keyline.CodeUnavailable)
	if strings.Contains(a.body, "someuser") || strings.Contains(a.body, "127.0.0.1") || strings.Contains(a.body, "somedb") {
		t.Error(a.body)
	}
	if a := ask(t.Context(), h, "", http.MethodGet, "/livez", ""); a.code != http.StatusOK || a.body != "ok\n" {
		t.Errorf("livez: %d %s", a.code, a.body)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAPayloadIsCappedAndNeverShownUnredacted(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	read := func(cfg keyline.GateConfig, token string) answer {
		h := must(api.New(must(keyline.NewGate(r.db.Pool(), cfg))(t), api.Config{}))(t)
		return ask(t.Context(), h, r.tokens[token], http.MethodPost, fmt.Sprintf("/v1/events/%s/payload", r.secret), because(""))
	}
	if a := read(keyline.GateConfig{PayloadLimit: 10}, "operator"); a.value(t)["omitted"] != true || a.value(t)["payload"] != nil || a.value(t)["bytes"].(float64) < 20 {
		t.Errorf("%s", a.body)
	}
	// A hook that fails shows nothing, and what it says neither.
	a := read(keyline.GateConfig{Redact: func(keyline.EventView, jsonText) (jsonText, error) { return nil, fmt.Errorf("no %s", marked) }}, "operator")
	wantProblem(t, a, http.StatusUnprocessableEntity, keyline.CodeInvalidPayload)
	if strings.Contains(a.body, marked) {
		t.Error(a.body)
	}
	wantProblem(t, read(keyline.GateConfig{}, "viewer"), http.StatusForbidden, keyline.CodePermissionDenied)
	// A viewer does not even find an event of an internal type.
	wantProblem(t, r.ask("viewer", http.MethodGet, fmt.Sprintf("/v1/events/%s", r.secret), ""), http.StatusNotFound, keyline.CodeNotFound)
	if a := r.ask("operator", http.MethodGet, fmt.Sprintf("/v1/events/%s", r.secret), ""); a.code != http.StatusOK {
		t.Errorf("%d %s", a.code, a.body)
	}
}
