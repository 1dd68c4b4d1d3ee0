package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/webhook"
)

// webhooksKey is the one key of the settings file that is no flag: consumers that are endpoints.
const webhooksKey = "webhooks"

// webhookSettings is a consumer in the settings file, which hands its events to an endpoint.
type webhookSettings struct {
	Name           string            `json:"name"`
	PreviousNames  []string          `json:"previous_names"`
	Revision       int               `json:"revision"`
	Types          []string          `json:"types"`
	Versions       []int             `json:"versions"`
	OnUnsupported  string            `json:"on_unsupported"`
	Start          string            `json:"start"`
	CatchUp        bool              `json:"catch_up"`
	Retry          []textDuration    `json:"retry"`
	OnDead         string            `json:"on_dead"`
	Internal       bool              `json:"internal"`
	MaxInFlight    int               `json:"max_in_flight"`
	URL            string            `json:"url"`
	AllowHTTP      bool              `json:"allow_http"`
	Format         string            `json:"format"`
	Source         string            `json:"source"`
	Secrets        []secretSource    `json:"secrets"`
	Unsigned       bool              `json:"unsigned"`
	Timeout        textDuration      `json:"timeout"`
	Headers        map[string]string `json:"headers"`
	MaxBody        int64             `json:"max_body"`
	AllowAddresses []netip.Prefix    `json:"allow_addresses"`
}

// secretSource is where secrets are: they are in no settings file.
type secretSource struct {
	Env  string `json:"env"`
	File string `json:"file"`
}

// textDuration is a duration as text: 30s, 5m.
type textDuration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *textDuration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = textDuration(v)
	return err
}

// webhooks are the consumers of the settings file. What it does not know is refused.
func (a *app) webhooks() ([]keyline.Consumer, error) {
	if a.global.webhooks == nil {
		return nil, nil
	}
	bad := func(format string, args ...any) error {
		return &usageError{err: fmt.Errorf("settings file %s: %s: %w", a.global.config, webhooksKey, fmt.Errorf(format, args...))}
	}
	text, err := json.Marshal(a.global.webhooks)
	if err != nil {
		return nil, bad("%w", err)
	}
	var list []webhookSettings
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return nil, bad("%w", err)
	}
	consumers := make([]keyline.Consumer, 0, len(list))
	for i, w := range list {
		c, err := w.consumer()
		if err != nil {
			return nil, bad("%d (%s): %w", i+1, w.Name, err)
		}
		consumers = append(consumers, c)
	}
	return consumers, nil
}

func (w *webhookSettings) consumer() (keyline.Consumer, error) {
	c := keyline.Consumer{
		Name: w.Name, PreviousNames: w.PreviousNames, Revision: w.Revision, Types: w.Types, Versions: w.Versions,
		OnUnsupported: keyline.Unsupported(w.OnUnsupported), OnDead: keyline.OnDead(w.OnDead), CatchUp: w.CatchUp, Internal: w.Internal, MaxInFlight: w.MaxInFlight,
		Effect: keyline.External("the endpoint drops a webhook-id that it has seen"),
	}
	switch w.Start {
	case "", "now":
	case "beginning":
		c.Start = keyline.Beginning()
	default:
		at, err := time.Parse(time.RFC3339, w.Start)
		if err != nil {
			return c, fmt.Errorf("start %q: must be now, beginning or a time", w.Start)
		}
		c.Start = keyline.At(at)
	}
	if w.Retry != nil {
		c.Retry.Delays = make([]time.Duration, len(w.Retry))
		for i, d := range w.Retry {
			c.Retry.Delays[i] = time.Duration(d)
		}
	}
	secrets, err := w.secrets()
	if err != nil {
		return c, err
	}
	c.Handle, err = webhook.Handler(webhook.Config{URL: w.URL, AllowHTTP: w.AllowHTTP, Format: webhook.Format(w.Format), Source: w.Source, Secrets: secrets, Unsigned: w.Unsigned,
		Timeout: time.Duration(w.Timeout), Headers: w.Headers, MaxBody: w.MaxBody, AllowAddresses: w.AllowAddresses})
	return c, err
}

// secrets are read once, so that what is missing is said before anything begins.
func (w *webhookSettings) secrets() (webhook.Secrets, error) {
	var sources []webhook.Secrets
	for _, s := range w.Secrets {
		switch {
		case (s.Env == "") == (s.File == ""):
			return nil, errors.New("secrets: each is one env or one file")
		case s.Env != "":
			sources = append(sources, webhook.SecretsFromEnv(s.Env))
		default:
			sources = append(sources, webhook.SecretsFromFile(s.File))
		}
	}
	if len(sources) == 0 {
		return nil, nil
	}
	all := webhook.AllSecrets(sources...)
	if _, err := all(context.Background()); err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	return all, nil
}

// check says what a worker would run, and starts nothing: not even the database is asked.
func (a *app) check(ctx context.Context, s *workerSettings, consumers []keyline.Consumer) error {
	url := a.global.databaseURL
	if url == "" {
		url = "postgres://localhost" // never connected
	}
	pool, err := parsePool(url)
	if err != nil {
		return err
	}
	_, closeIt, err := newWorker(ctx, pool, s.config(a.global.schema), consumers)
	if err != nil {
		return err
	}
	closeIt()
	type line struct {
		Name   string   `json:"name"`
		Types  []string `json:"types"`
		Effect string   `json:"effect"`
	}
	lines := []line{}
	for _, c := range consumers {
		if c.Excluded == "" && !c.ContractOnly {
			lines = append(lines, line{c.Name, c.Types, string(c.Effect.Class)})
		}
	}
	if a.global.json {
		return a.printJSON(map[string]any{"ok": true, "consumers": lines})
	}
	for _, l := range lines {
		if err := a.print("%s: %s (%s)", printable(l.Name), printable(list(l.Types)), l.Effect); err != nil {
			return err
		}
	}
	return a.print("ok")
}
