package pgdev

import (
	"maps"
	"slices"
	"strconv"
)

// Options say how a server is run. The zero value is a temporary, fast and
// forgetful one that listens on a Unix socket only.
type Options struct {
	// Dir is where the data directory and the log are kept. Empty: a temporary
	// directory, which goes with the server. A cluster that is in Dir already
	// is started as it is. Where the process is root, the account that the
	// server runs as must be able to reach Dir.
	Dir string

	// Durable leaves fsync, synchronous_commit and full_page_writes on, for
	// tests that crash the server and for data that should outlive a power cut.
	Durable bool

	// Settings are configuration parameters (the names of postgresql.conf);
	// they win over those of this package.
	Settings map[string]string

	// TCP makes the server listen on 127.0.0.1 too, where clients need the
	// password that is part of TCPURL.
	TCP bool

	// Port is the port for TCP. 0: a free one.
	Port int

	// BinDir is the directory of the server binaries. Empty: as Find finds.
	BinDir string
}

// arguments are the settings as command line arguments of postgres, in a fixed
// order.
func (o Options) arguments(socketDir string, port int) []string {
	s := map[string]string{
		"listen_addresses":        "",
		"unix_socket_directories": socketDir,
		"port":                    strconv.Itoa(port),
		"shared_buffers":          "256MB",
		"max_connections":         "300",
		"max_wal_size":            "4GB",
		"checkpoint_timeout":      "30min",
		"autovacuum":              "on",
		// Compiling a query for a database this small costs more than it saves,
		// and makes the first run of a query look hung.
		"jit":             "off",
		"log_line_prefix": "%m [%p] %d ",
		"log_checkpoints": "off",
		"log_lock_waits":  "on",
	}
	if o.TCP {
		s["listen_addresses"] = "127.0.0.1"
	}
	if !o.Durable {
		s["fsync"] = "off"
		s["synchronous_commit"] = "off"
		s["full_page_writes"] = "off"
	}
	maps.Copy(s, o.Settings)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		args = append(args, "-c", name+"="+s[name])
	}
	return args
}
