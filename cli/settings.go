package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/keylinehq/keyline/migrations"
)

// envPrefix begins the environment variables of settings: KEYLINE_POLL_INTERVAL
// is the flag --poll-interval.
const envPrefix = "KEYLINE_"

// globalSettings are those of every command.
type globalSettings struct {
	databaseURL string
	schema      string
	json        bool
	config      string
	logLevel    string
	logFormat   string

	// webhooks is what the file says of consumers that are endpoints.
	webhooks any
}

func (g *globalSettings) flags(f *pflag.FlagSet) {
	f.StringVar(&g.databaseURL, "database-url", "", "connection string of the database (or DATABASE_URL)")
	f.StringVar(&g.schema, "schema", migrations.DefaultSchema, "schema that Keyline is installed in")
	f.BoolVar(&g.json, "json", false, "print JSON")
	f.StringVar(&g.config, "config", "", "YAML file with settings, named as the flags are")
	f.StringVar(&g.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&g.logFormat, "log-format", "auto", "text, json, or auto: text on a terminal")
}

// settingNames are the flags that can also come from the environment and the
// file: those of every command, of a worker and of the admin API. What a single call is
// about (a key, a payload) cannot.
func settingNames() map[string]bool {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	(&globalSettings{}).flags(f)
	(&workerSettings{}).flags(f)
	(&apiSettings{}).flags(f)
	names := map[string]bool{}
	f.VisitAll(func(flag *pflag.Flag) { names[flag.Name] = true })
	return names
}

// layer gives every setting that is no flag of this call its value from the
// environment or the file, in this order. The flags' own types parse them.
func (a *app) layer(cmd *cobra.Command) error {
	names := settingNames()
	k := koanf.New(".")
	if err := a.loadFile(cmd, k, names); err != nil {
		return err
	}
	// A variable of another program or of a newer release is none of ours, and
	// an empty one is as good as none.
	fromEnv := koanf.New(".")
	err := fromEnv.Load(env.Provider(".", env.Opt{Prefix: envPrefix, TransformFunc: func(name, value string) (string, any) {
		key := settingKey(strings.TrimPrefix(name, envPrefix))
		if !names[key] || value == "" {
			return "", nil
		}
		return key, value
	}}), nil)
	if err != nil {
		return fmt.Errorf("read environment: %w", err)
	}
	// The variable that every tool reads, where ours is not set.
	if url := os.Getenv("DATABASE_URL"); url != "" && !fromEnv.Exists("database-url") {
		if err := fromEnv.Set("database-url", url); err != nil {
			return fmt.Errorf("read environment: %w", err)
		}
	}
	if err := k.Merge(fromEnv); err != nil {
		return fmt.Errorf("merge settings: %w", err)
	}
	var bad error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || !k.Exists(f.Name) || bad != nil {
			return
		}
		value := k.String(f.Name)
		if list := k.Strings(f.Name); len(list) > 0 {
			value = strings.Join(list, ",")
		}
		if err := f.Value.Set(value); err != nil {
			origin := a.global.config
			if fromEnv.Exists(f.Name) {
				origin = envName(f.Name)
			}
			bad = &usageError{err: fmt.Errorf("%s: %s %q: %w", origin, f.Name, value, err)}
		}
	})
	return bad
}

func (a *app) loadFile(cmd *cobra.Command, k *koanf.Koanf, names map[string]bool) error {
	path := a.global.config
	if path == "" {
		path = os.Getenv(envName("config"))
	}
	if path == "" {
		return nil
	}
	a.global.config = path
	raw := koanf.New(".")
	if err := raw.Load(file.Provider(path), yaml.Parser()); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return &usageError{err: fmt.Errorf("settings file: %w", err)}
		}
		return &usageError{err: fmt.Errorf("settings file %s: %w", path, err)}
	}
	for name, value := range raw.Raw() {
		key := settingKey(name)
		if key == webhooksKey {
			a.global.webhooks = value
			continue
		}
		if !names[key] || key == "config" {
			return usagef(cmd, "settings file %s: there is no setting %q", path, name)
		}
		if err := k.Set(key, value); err != nil {
			return fmt.Errorf("settings file %s: %w", path, err)
		}
	}
	return nil
}

func settingKey(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// logger makes the logger that the settings ask for. It writes to w.
func (g *globalSettings) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(g.logLevel)); err != nil {
		return nil, &usageError{err: fmt.Errorf("log-level: %w", err)}
	}
	format := g.logFormat
	if format == "auto" {
		format = "json"
		if isTerminal(w) {
			format = "text"
		}
	}
	switch format {
	case "text":
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, NoColor: !isTerminal(w) || os.Getenv("NO_COLOR") != ""})), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})), nil
	}
	return nil, &usageError{err: fmt.Errorf("log-format %q: must be text, json or auto", g.logFormat)}
}
