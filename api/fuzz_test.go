package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/api"
	"github.com/keylinehq/keyline/internal/testdb"
)

// FuzzSurface: whatever a request is, whoever sends it, it is answered without a panic or a status of 500, shows
// one tenant's viewer nothing of others, nothing of an internal type and no payload, and changes nothing that its bearer may not.
func FuzzSurface(f *testing.F) {
	db := testdb.New(f)
	pool := db.Pool()
	client := must(keyline.NewClient(keyline.ClientConfig{EventTypes: []keyline.EventType{{Type: internal, Internal: true}}}))(f)
	if err := client.RegisterEventTypes(f.Context(), pool); err != nil {
		f.Fatal(err)
	}
	hidden := []string{`"tenant":"` + others, `"` + internal + `"`, marked}
	for _, tenant := range []string{mine, others} {
		for _, eventType := range []string{"dead", internal} {
			e := must(client.Append(f.Context(), pool, keyline.NewEvent{Key: keyline.Key{Tenant: tenant, Record: "thing:1"}, Type: eventType, Payload: marked}))(f)
			if tenant == others || eventType == internal {
				hidden = append(hidden, e.ID.String())
			}
		}
	}
	admin := must(keyline.NewOperator(pool, keyline.OperatorConfig{Actor: "root", Role: keyline.RoleAdmin}))(f)
	viewer := must(admin.CreateToken(f.Context(), keyline.NewToken{Name: "v", Role: keyline.RoleViewer, Tenant: ptr(mine)}, ""))(f).Secret
	h := must(api.New(must(keyline.NewGate(pool, keyline.GateConfig{}))(f), api.Config{RequestsPerSecond: 1e9, Burst: 1e9}))(f)
	f.Cleanup(func() { _ = h.Close(context.Background()) })

	seed := &rig{dead: map[string]uuid.UUID{}, letters: map[string]int64{mine: 1}, numbers: map[string]int64{}}
	for _, s := range surfaces {
		method := http.MethodGet
		if s.body != nil {
			method = http.MethodPost
		}
		path, query, _ := strings.Cut(s.target(seed, mine, ""), "?")
		f.Add(true, method, path, query, "application/json", s.json(seed, mine))
		f.Add(true, method, path, query+"&limit=1&cursor=WyJhIiwiYiJd", "application/json; charset=utf-8", "")
		f.Add(false, method, path, query, "application/json", s.json(seed, others))
	}
	f.Add(true, "GET", "/v1/record/../record", "tenant=%00&key=%ff", "", "")
	f.Add(true, "GET", "//v1/events/%2e%2e/why", "tenant=a&tenant=b", "", "")
	f.Add(true, "POST", "/v1/record/skip", "", "application/x-www-form-urlencoded", "reason=x")
	f.Add(true, "POST", "/v1/record/skip", "", "multipart/form-data; boundary=x", "--x--")
	state := func(t testing.TB) (n int) {
		t.Helper()
		err := pool.QueryRow(t.Context(), "select (select count(*) from keyline.audit) + (select count(*) from keyline.commands) + (select count(*) from keyline.api_tokens)").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := state(f)
	known := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodHead, http.MethodOptions}
	f.Fuzz(func(t *testing.T, letIn bool, method, path, query, contentType, body string) {
		if !slices.Contains(known, method) || strings.HasPrefix(path, "/v1/changes") {
			return // what a server never hands on, and what does not end
		}
		r := httptest.NewRequestWithContext(t.Context(), method, "/", strings.NewReader(body))
		r.URL = &url.URL{Path: path, RawQuery: query}
		if unescaped, err := url.PathUnescape(path); err == nil {
			r.URL.Path, r.URL.RawPath = unescaped, path
		}
		if !strings.HasPrefix(r.URL.Path, "/") {
			return
		}
		r.Header.Set("Content-Type", contentType)
		if letIn {
			r.Header.Set("Authorization", "Bearer "+viewer)
		}
		r.RemoteAddr = "[fd00::" + number(int64(address.Add(1)%9999)) + "]:1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		got := w.Body.String()
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%d: %s", w.Code, got)
		}
		if !letIn && w.Code < http.StatusBadRequest && path != "/livez" {
			t.Errorf("nobody is let in: %d %s", w.Code, got)
		}
		asked := path + " " + query + " " + body
		for _, text := range hidden {
			if strings.Contains(got, text) && !strings.Contains(asked, text) {
				t.Errorf("%q is shown: %s", text, got)
			}
		}
		if after := state(t); after != before {
			t.Fatalf("a viewer changed something: %d rows, %d before", after, before)
		}
	})
}
