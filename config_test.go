package keyline_test

import (
	"errors"
	"os"
	"reflect"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
)

func TestWorkerSettingsThatMakeNoSenseAreRefusedByName(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none") // never connected to
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for field, cfg := range map[string]keyline.Config{
		"Middleware[1]": {Middleware: []func(keyline.Handler) keyline.Handler{
			func(h keyline.Handler) keyline.Handler { return h }, nil,
		}},
		"PollInterval":           {PollInterval: -time.Second},
		"Linger":                 {Linger: -1},
		"ClaimBatch":             {ClaimBatch: -1},
		"MaxRecords":             {MaxRecords: -1},
		"MaxInFlight":            {MaxInFlight: -1},
		"MaxInFlightPerConsumer": {MaxInFlightPerConsumer: -1},
		"Lease":                  {Lease: time.Millisecond},
		"StaleThreshold":         {StaleThreshold: -1},
		"ShutdownGrace":          {ShutdownGrace: -1},
		"FlushDelay":             {FlushDelay: -1},
		"CrashBudget":            {CrashBudget: -1},
		"Ordering":               {Ordering: "sideways"},
	} {
		_, err := keyline.NewWorker(pool, cfg)
		var named *keyline.Error
		if !errors.As(err, &named) || named.Field != "Config."+field || !errors.Is(err, keyline.ErrInvalid) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := keyline.NewWorker(pool, keyline.Config{}); err != nil {
		t.Errorf("the zero value: %v", err)
	}
}

func TestEverySettingIsInTheTableOfDefaults(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	// Given by the program that embeds a worker, not set by an operator.
	inCode := map[string]bool{"Logger": true, "TracerProvider": true, "MeterProvider": true}
	for typ, skip := range map[reflect.Type]map[string]bool{
		reflect.TypeFor[keyline.Config](): inCode,
		reflect.TypeFor[keyline.Consumer](): {"Name": true, "PreviousNames": true, "Internal": true, "ContractOnly": true, "Excluded": true,
			"Handle": true, "HandleTx": true, "HandleBatch": true},
	} {
		for i := range typ.NumField() {
			name := typ.Field(i).Name
			if !skip[name] && !regexp.MustCompile("(?m)^\\|[^|]*`"+name+"`").Match(page) {
				t.Errorf("%s.%s is not in docs/configuration.md", typ.Name(), name)
			}
		}
	}
}
