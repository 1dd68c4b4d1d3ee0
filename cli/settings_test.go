package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/keylinehq/keyline"
)

// TestEverySettingOfAWorkerIsAFlag holds the flags to keyline.Config: each is
// set to something that is not its default, and each field must have got it.
func TestEverySettingOfAWorkerIsAFlag(t *testing.T) {
	var s workerSettings
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.flags(f)
	f.VisitAll(func(flag *pflag.Flag) {
		value := map[string]string{"bool": "false", "duration": "77s", "int": "77", "float64": "0.77", "string": "seventy-seven", "stringSlice": "a"}[flag.Value.Type()]
		if value == "" || value == flag.DefValue {
			t.Fatalf("no value for --%s", flag.Name)
		}
		if err := f.Set(flag.Name, value); err != nil {
			t.Fatal(err)
		}
	})
	// What a command line cannot say.
	without := []string{"Beside", "Middleware", "Logger", "TracerProvider", "MeterProvider"}
	cfg := reflect.ValueOf(s.config("a_schema"))
	for i := range cfg.NumField() {
		name := cfg.Type().Field(i).Name
		got := cfg.Field(i).Interface()
		switch got {
		case true, 77, 77 * time.Second, "seventy-seven", "a_schema", keyline.Ordering("seventy-seven"):
			if slices.Contains(without, name) {
				t.Errorf("%s is set, and listed as what a command line cannot say", name)
			}
		default:
			if !slices.Contains(without, name) {
				t.Errorf("%s is %v: no flag reaches it", name, got)
			}
		}
	}
}

// TestTheDefaultsAreTheLibrarys: an unset flag means what a zero field means.
func TestTheDefaultsAreTheLibrarys(t *testing.T) {
	var s workerSettings
	s.flags(pflag.NewFlagSet("", pflag.ContinueOnError))
	want := keyline.Config{
		PollInterval: keyline.DefaultPollInterval, Linger: keyline.DefaultLinger, ClaimBatch: keyline.DefaultClaimBatch,
		MaxRecords: keyline.DefaultMaxRecords, MaxInFlight: keyline.DefaultMaxInFlight,
		MaxInFlightPerConsumer: keyline.DefaultMaxInFlightPerConsumer, Lease: keyline.DefaultLease,
		ShutdownGrace: keyline.DefaultShutdownGrace, FlushDelay: keyline.DefaultFlushDelay, CrashBudget: keyline.DefaultCrashBudget,
	}
	if got := s.config(""); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestFlagBeatsEnvironmentBeatsFile layers one setting three times, for several types.
func TestFlagBeatsEnvironmentBeatsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keyline.yaml")
	text := "lease: 1s\nmax_records: 1\nonly: [a, b]\nname: file\nenabled: false\nDATABASE-URL: postgres://file/x\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(args ...string) (s workerSettings, url string) {
		t.Helper()
		a := &app{}
		cmd := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error { return a.layer(cmd) }}
		a.global.flags(cmd.PersistentFlags())
		s.flags(cmd.Flags())
		cmd.SetArgs(append([]string{"--config", file}, args...))
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		return s, a.global.databaseURL
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, envPrefix) || name == "DATABASE_URL" {
			t.Setenv(name, "")
		}
	}
	s, url := read()
	if s.lease != time.Second || s.maxRecords != 1 || !slices.Equal(s.only, []string{"a", "b"}) || s.name != "file" || s.enabled || url != "postgres://file/x" {
		t.Errorf("file: %+v %s", s, url)
	}
	if s.linger != keyline.DefaultLinger {
		t.Errorf("what the file does not name is %s", s.linger)
	}
	t.Setenv("DATABASE_URL", "postgres://everybodys/x")
	if _, url = read(); url != "postgres://everybodys/x" {
		t.Errorf("DATABASE_URL: %s", url)
	}
	t.Setenv("KEYLINE_DATABASE_URL", "postgres://ours/x")
	t.Setenv("KEYLINE_LEASE", "2s")
	t.Setenv("KEYLINE_MAX_RECORDS", "2")
	t.Setenv("KEYLINE_ONLY", "c,d")
	t.Setenv("KEYLINE_ENABLED", "true")
	s, url = read()
	if s.lease != 2*time.Second || s.maxRecords != 2 || !slices.Equal(s.only, []string{"c", "d"}) || s.name != "file" || !s.enabled || url != "postgres://ours/x" {
		t.Errorf("environment: %+v %s", s, url)
	}
	s, url = read("--lease", "3s", "--max-records", "3", "--only", "e", "--name", "flag", "--enabled=false", "--database-url", "postgres://flag/x")
	if s.lease != 3*time.Second || s.maxRecords != 3 || !slices.Equal(s.only, []string{"e"}) || s.name != "flag" || s.enabled || url != "postgres://flag/x" {
		t.Errorf("flags: %+v %s", s, url)
	}
}

func TestWhatWentWrongIsOneThingSaidOnce(t *testing.T) {
	for in, want := range map[string]string{
		"keyline: consumer x: keyline: not found":  "consumer x: not found",
		"failed to connect:\n\t127.0.0.1: refused": "failed to connect:\n  127.0.0.1: refused",
	} {
		if got := printable(plain(in)); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestPrintableShowsWhatATerminalWouldObey(t *testing.T) {
	for in, want := range map[string]string{
		"activity:42":         "activity:42",
		"naïve ☃":             "naïve ☃",
		"\x1b[2Jgone":         `\x1b[2Jgone`,
		"a\u009bb\x7fc\u202e": `a\u009bb\x7fc\u202e`,
		"two\nlines":          "two\nlines",
	} {
		if got := printable(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
		if got := line(in); got != strings.ReplaceAll(want, "\n", `\n`) {
			t.Errorf("%q on one line becomes %q", in, got)
		}
	}
}
