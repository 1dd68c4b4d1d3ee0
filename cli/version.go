package cli

import "runtime/debug"

// version is the module's version, or the commit that the binary was built of.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == "github.com/keylinehq/keyline" && m.Version != "" {
			return m.Version
		}
	}
	return "unknown"
}
