package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/api"
)

// described is the description that strangers are given, to hold answers to.
type described struct {
	doc      map[string]any
	compiler *jsonschema.Compiler
	paths    []describedPath
	mu       sync.Mutex
	schemas  map[string]*jsonschema.Schema
}

// describedPath is a path of the description as a pattern.
type describedPath struct {
	pattern  *regexp.Regexp
	template string
}

const describedAt = "mem:///openapi.json"

// theDescription is read once: what each answer of each test is held to.
var theDescription = sync.OnceValue(func() *described {
	text, err := api.OpenAPIJSON()
	if err != nil {
		panic(err)
	}
	read, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		panic(err)
	}
	d := &described{doc: read.(map[string]any), compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}}
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource(describedAt, read); err != nil {
		panic(err)
	}
	param := regexp.MustCompile(`\\\{[^/]*?\\\}`)
	for template := range d.doc["paths"].(map[string]any) {
		d.paths = append(d.paths, describedPath{regexp.MustCompile("^" + param.ReplaceAllString(regexp.QuoteMeta(template), "[^/]+") + "$"), template})
	}
	// What has no parameters comes first: it is meant where both fit.
	slices.SortFunc(d.paths, func(a, b describedPath) int {
		return strings.Count(a.template, "{") - strings.Count(b.template, "{")
	})
	return d
})

// at is a part of the description.
func (d *described) at(path ...string) (map[string]any, bool) {
	v := d.doc
	for _, name := range path {
		next, ok := v[name].(map[string]any)
		if !ok {
			return nil, false
		}
		v = next
	}
	return v, true
}

// schema compiles the schema at a place of the description.
func (d *described) schema(path ...string) (*jsonschema.Schema, error) {
	place := describedAt + "#"
	for _, name := range path {
		place += "/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.schemas[place]; s != nil {
		return s, nil
	}
	s, err := d.compiler.Compile(place)
	if err == nil {
		d.schemas[place] = s
	}
	return s, err
}

// holds says in what an answer is not as the description has it.
func (d *described) holds(method, escapedPath string, a answer) error {
	i := slices.IndexFunc(d.paths, func(p describedPath) bool { return p.pattern.MatchString(escapedPath) })
	if i < 0 {
		return d.isProblem(a)
	}
	template, verb := d.paths[i].template, strings.ToLower(method)
	if _, ok := d.at("paths", template, verb); !ok {
		return d.isProblem(a)
	}
	status := strconv.Itoa(a.code)
	if _, ok := d.at("paths", template, verb, "responses", status); !ok {
		if a.code < http.StatusBadRequest {
			return fmt.Errorf("%d is not described", a.code)
		}
		status = "default"
		if err := d.isProblem(a); err != nil {
			return err
		}
	}
	media, params, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if err != nil || params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
		return fmt.Errorf("Content-Type %q: %w", a.header.Get("Content-Type"), err)
	}
	path := []string{"paths", template, verb, "responses", status, "content", media, "schema"}
	if _, ok := d.at(path...); !ok {
		return fmt.Errorf("%d %s is not described", a.code, media)
	}
	if media == "text/event-stream" {
		return nil // TestAStream… holds each event to its schema
	}
	s, err := d.schema(path...)
	if err != nil {
		return err
	}
	if err := fits(s, a.body); err != nil {
		return err
	}
	for name := range a.header {
		headers, _ := d.at("paths", template, verb, "responses", status, "headers")
		if !slices.Contains(everywhere, name) && !slices.ContainsFunc(slices.Collect(maps.Keys(headers)), func(h string) bool { return strings.EqualFold(h, name) }) {
			return fmt.Errorf("the header %s is not described", name)
		}
	}
	return nil
}

// fits reports what of a body is not as its schema says.
func fits(s *jsonschema.Schema, body string) error {
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	if err != nil {
		return err
	}
	if err := s.Validate(v); err != nil {
		return fmt.Errorf("%w: %s", err, body)
	}
	return nil
}

// everywhere are headers that any answer may have.
var everywhere = []string{"Cache-Control", "X-Content-Type-Options", "Referrer-Policy", "Content-Security-Policy", "Content-Type"}

// isProblem holds an answer to what every problem is.
func (d *described) isProblem(a answer) error {
	if a.code < http.StatusBadRequest || a.header.Get("Content-Type") != "application/problem+json" {
		return fmt.Errorf("%d %s is no problem", a.code, a.header.Get("Content-Type"))
	}
	s, err := d.schema("components", "schemas", "Problem")
	if err != nil {
		return err
	}
	if err := fits(s, a.body); err != nil {
		return err
	}
	var p struct {
		Status int
		Title  string
		Errors []map[string]any
	}
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		return err
	}
	if p.Status != a.code || p.Title != http.StatusText(a.code) {
		return fmt.Errorf("%d is a problem that says %d %q", a.code, p.Status, p.Title)
	}
	return nil
}

// event holds an event of the stream to its schema.
func (d *described) event(name, data string) error {
	s, err := d.schema("paths", "/v1/changes", "get", "responses", "200", "content", "text/event-stream", "schema", "items")
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(data))
	if err != nil {
		return err
	}
	if err := s.Validate(map[string]any{"event": name, "data": v}); err != nil {
		return fmt.Errorf("%w: %s %s", err, name, data)
	}
	return nil
}

// Promise: what an answer has null, the description says may be null.
func TestWhatMayBeNullIsDescribedSo(t *testing.T) {
	t.Parallel()
	schemas, checked := api.Description(must(api.New(must(keyline.NewGate(unconnected(t), keyline.GateConfig{}))(t), api.Config{}))(t)).Components.Schemas, 0
	for name := range schemas.Map() {
		of := schemas.TypeFromRef("#/components/schemas/" + name)
		if of == nil || of.Kind() != reflect.Struct {
			continue
		}
		text, err := json.Marshal(reflect.New(of).Interface())
		if err != nil {
			t.Fatal(err)
		}
		var empty map[string]any
		if err := json.Unmarshal(text, &empty); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, f := range reflect.VisibleFields(of) {
			property, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if value, there := empty[property]; f.Type.Kind() != reflect.Pointer || !there || value != nil {
				continue
			}
			checked++
			s := must(theDescription().schema("components", "schemas", name, "properties", property))(t)
			if err := s.Validate(nil); err != nil {
				t.Errorf("%s.%s is null where there is none: %v", name, property, err)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d fields may be null", checked)
	}
}

// Promise: whatever stands in the database, each answer is as the description says (which every other test of this package
// holds its answers to as well).
func TestEveryStateIsAnsweredAsTheDescriptionSays(t *testing.T) {
	t.Parallel()
	r := newRig(t, api.Config{})
	pool := r.db.Pool()
	running, release := make(chan struct{}), make(chan struct{})
	w := must(keyline.NewWorker(pool, keyline.Config{Name: "second", Beside: "w", Logger: slog.New(slog.DiscardHandler)},
		keyline.Consumer{Name: "parks", Types: []string{"parks"}, Effect: keyline.None(), OnDead: keyline.Park, Retry: keyline.RetryPolicy{Delays: []time.Duration{}},
			Handle: func(context.Context, *keyline.Delivery) error { return errors.New("never") }},
		keyline.Consumer{Name: "runs", Types: []string{"runs"}, Effect: keyline.None(), Handle: func(ctx context.Context, _ *keyline.Delivery) error {
			close(running)
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil
		}},
		keyline.Consumer{Name: "old", Types: []string{"versioned"}, Versions: []int{1}, Effect: keyline.External("it is dropped"), OnUnsupported: keyline.SkipUnsupported,
			Handle: func(context.Context, *keyline.Delivery) error { return keyline.Skip("not for me") }},
		keyline.Consumer{Name: "past", Types: []string{"versioned"}, Effect: keyline.None(), Start: keyline.At(time.Unix(1e9, 0)), PreviousNames: []string{"before"}, Revision: 7,
			Handle: func(context.Context, *keyline.Delivery) error { return nil }},
		keyline.Consumer{Name: "contract", Types: []string{"*"}, Effect: keyline.None(), ContractOnly: true},
	))(t)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		close(release)
		if _, err := w.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	client := must(keyline.NewClient(keyline.ClientConfig{}))(t)
	events := []uuid.UUID{r.dead[mine], r.late[mine], r.secret}
	keys := []string{"thing:1"}
	for i, e := range []keyline.NewEvent{{Type: "parks"}, {Type: "runs"}, {Type: "versioned", Version: 2}, {Type: "versioned"}, {Type: "nobody's"}} {
		e.Key, e.Headers = keyline.Key{Tenant: mine, Record: fmt.Sprintf("a/b?c=%%2F&ü#..:%d", i)}, map[string]string{"x": "y"}
		events, keys = append(events, must(client.Append(t.Context(), pool, e))(t).ID), append(keys, e.Key.Record)
	}
	<-running
	r.await("it is parked", "select exists (select from keyline.checkpoints where state = 'parked')")
	r.await("it is skipped", "select exists (select from keyline.skips)")
	must(r.admin.RevokeToken(t.Context(), r.numbers["viewer"], "r"))(t)
	r.await("the past is looked through, before which it cannot be paused", "select status = 'active' from keyline.consumers where name = 'past'")
	if err := r.admin.PauseConsumer(t.Context(), "past", "r"); err != nil {
		t.Fatal(err)
	}
	must(r.admin.ResolveDeadLetter(t.Context(), r.letters[others], "r"))(t)
	exec(t, pool, "insert into keyline.workers (name, instance, host, pid, status, lease, ended_at) values ('lost', gen_random_uuid(), 'h', 1, 'lost', '2 s', clock_timestamp())")
	targets := []string{"/v1/whoami", "/v1/overview", "/v1/health", "/v1/stuck", "/v1/consumers", "/v1/workers", "/v1/records", "/v1/audit", "/v1/tokens", "/v1/bulk",
		"/v1/dead-letters?status=open,retrying,delivered,resolved"}
	for _, name := range []string{"parks", "runs", "old", "past", "contract", "dies", "waits"} {
		targets = append(targets, "/v1/consumers/"+name, "/v1/consumers/"+name+"/behind")
	}
	for _, id := range events {
		targets = append(targets, "/v1/events/"+id.String(), "/v1/events/"+id.String()+"/trace")
	}
	for _, key := range keys {
		for _, path := range []string{"/v1/record", "/v1/record/why", "/v1/record/events"} {
			targets = append(targets, path+"?tenant="+mine+"&key="+url.QueryEscape(key))
		}
	}
	for _, target := range targets {
		if a := r.ask("admin", http.MethodGet, target, ""); a.code != http.StatusOK {
			t.Errorf("%s: %d %s", target, a.code, a.body)
		}
	}
	for _, act := range []string{"/v1/verify", "/v1/prune/preview"} {
		if a := r.ask("admin", http.MethodPost, act, "{}"); a.code != http.StatusOK {
			t.Errorf("%s: %d %s", act, a.code, a.body)
		}
	}
}

// unconnected is a pool that nobody uses.
func unconnected(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := must(pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none"))(t)
	t.Cleanup(pool.Close)
	return pool
}
