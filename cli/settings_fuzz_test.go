package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FuzzSettings: whatever a settings file and an environment variable hold, they
// either are refused as wrong usage, by the name of what is wrong, or every setting is what its
// own flag would make of it.
func FuzzSettings(f *testing.F) {
	for _, s := range [][3]string{
		{"lease: 1s\nonly: [a, b]\nname: x\n", "LEASE", "2s"}, {"lease: 1\n", "MAX_RECORDS", "many"}, {"only:\n  - {a: b}\n", "ONLY", "a,,\"b"},
		{"max-records: 1e3\nenabled: yes\n", "ENABLED", "y"}, {"a: &a [*a]\n", "CONFIG", "/"}, {"no: such\n", "NO_SUCH", "x"}, {"- a\n", "", ""},
		{"name: null\nlease: ~\n", "NAME", "\xff"}, {"trace-catch-up: .inf\n", "TRACE_CATCH_UP", "NaN"}, {"{", "lease", "1"}, {"lease.x: 1\n", "DATABASE_URL", "postgres://"},
		{"? [a]\n: b\n", "LEASE", "9999999999h"}, {"only: \"a,\\\"\"\n", "ONLY", "\""}, {"1: 2\n", "HTTP", ":1"},
	} {
		f.Add([]byte(s[0]), s[1], s[2])
	}
	path := filepath.Join(f.TempDir(), "settings.yaml")
	f.Fuzz(func(t *testing.T, file []byte, name, value string) {
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, v := range os.Environ() {
			if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, envPrefix) || name == "DATABASE_URL" {
				t.Setenv(name, "")
			}
		}
		if !strings.ContainsAny(name, "=\x00") && !strings.Contains(value, "\x00") {
			t.Setenv(envPrefix+name, value)
		}
		a, s := &app{}, &workerSettings{}
		var flags *pflag.FlagSet
		cmd := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error {
			flags = cmd.Flags()
			return a.layer(cmd)
		}}
		a.global.flags(cmd.PersistentFlags())
		s.flags(cmd.Flags())
		cmd.SetArgs([]string{"--config", path})
		if err := cmd.Execute(); err != nil {
			if wrong := (*usageError)(nil); !errors.As(err, &wrong) || !strings.Contains(err.Error(), path) && !strings.Contains(err.Error(), envPrefix) {
				t.Errorf("%q, %s=%q: %v", file, name, value, err)
			}
			return
		}
		flags.VisitAll(func(f *pflag.Flag) {
			if envPrefix+name != envName(f.Name) || f.Name == "config" || value == "" {
				return // an empty one is as good as none
			}
			own := pflag.NewFlagSet("", pflag.ContinueOnError)
			(&globalSettings{}).flags(own)
			(&workerSettings{}).flags(own)
			if err := own.Set(f.Name, value); err != nil || own.Lookup(f.Name).Value.String() != f.Value.String() {
				t.Errorf("%s=%q becomes %s, its flag %s, %v", name, value, f.Value, own.Lookup(f.Name).Value, err)
			}
		})
	})
}
