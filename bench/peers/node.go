package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// What runs on Node is a program of its own, in a folder of its own.
//
//go:embed node/*.mjs node/*.json
var nodeFiles embed.FS

// oldestNode is the first major version of Node that the peers run on.
const oldestNode = 20

// nodePeers are the peers that run on Node, installed when the first of them runs.
type nodePeers struct {
	skip string // why they are not to run
	// install puts the program and its modules into a folder of the user's cache.
	install func() (dir string, err error)
}

// node looks whether there is a Node that the peers run on.
func node(ctx context.Context) nodePeers {
	var p nodePeers
	if p.skip = nodeMissing(ctx); p.skip == "" {
		p.install = sync.OnceValues(func() (string, error) { return nodeInstall(ctx) })
		if _, err := p.install(); err != nil {
			p.skip = "its modules could not be installed: " + err.Error()
		}
	}
	return p
}

func nodeMissing(ctx context.Context) string {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return program + " is not installed"
		}
	}
	text, err := exec.CommandContext(ctx, "node", "--version").Output()
	if err != nil {
		return "node --version: " + err.Error()
	}
	version := strings.TrimSpace(string(text))
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldestNode {
		return fmt.Sprintf("it needs Node %d, and this is %s", oldestNode, version)
	}
	return ""
}

// nodeInstall installs what the lock file names, once for each state of the program.
func nodeInstall(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	names, err := fs.Glob(nodeFiles, "node/*.*")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		text, err := nodeFiles.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
	}
	dir := filepath.Join(cache, "keyline", "bench-peers-"+hex.EncodeToString(sum.Sum(nil))[:12])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	making, err := os.MkdirTemp(filepath.Dir(dir), "bench-peers-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(making) }()
	for _, name := range names {
		text, err := nodeFiles.ReadFile(name)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(making, filepath.Base(name)), text, 0o644); err != nil {
			return "", err
		}
	}
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = making
	if text, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w: %s", err, lastLine(text))
	}
	return dir, os.Rename(making, dir)
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// nodeVersion is what the lock file has of a module.
func nodeVersion(module string) string {
	var lock struct {
		Packages map[string]struct{ Version string }
	}
	text, err := nodeFiles.ReadFile("node/package-lock.json")
	if err == nil {
		err = json.Unmarshal(text, &lock)
	}
	if err != nil {
		return ""
	}
	return "v" + lock.Packages["node_modules/"+module].Version
}

// run runs a peer once, in a database and a process of its own. What is
// particular to the scenario goes in with.
func (p nodePeers) run(peer, scenario string, own own, with func(settings) map[string]any) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		dir, err := p.install()
		if err != nil {
			return outcome{}, err
		}
		pool, drop, err := b.fresh(ctx)
		if err != nil {
			return outcome{}, err
		}
		defer drop()
		c := pool.Config().ConnConfig
		spec := map[string]any{"peer": peer, "scenario": scenario, "own": own, "max_conns": b.MaxConns, "clients": b.Clients,
			"duration_ns": b.Duration, "rate_per_s": b.Rate, "arrival_ns": arrival,
			"database": map[string]any{"host": c.Host, "port": c.Port, "user": c.User, "password": c.Password, "database": c.Database}}
		for name, value := range with(b.settings) {
			spec[name] = value
		}
		text, err := json.Marshal(spec)
		if err != nil {
			return outcome{}, err
		}
		cmd := exec.CommandContext(ctx, "node", "bench.mjs")
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		var m *meter
		unpin := func() {}
		defer func() { unpin() }()
		said, err := talk(cmd, text, func() (err error) {
			if unpin, err = b.pin(ctx, pool); err == nil {
				m, err = b.meter(ctx, pool, nil)
			}
			return err
		})
		if err != nil {
			return outcome{}, fmt.Errorf("node: %w", err)
		}
		var o struct {
			outcome
			CPU float64 `json:"cpu_us"`
		}
		if err := json.Unmarshal(said, &o); err != nil {
			return outcome{}, fmt.Errorf("node said %q: %w", said, err)
		}
		if m != nil {
			jobs := deliveries(with(b.settings))
			if o.Cost, err = m.read(ctx, jobs); err != nil {
				return o.outcome, err
			}
			o.Cost.WorkerCPU = o.CPU / float64(jobs)
		}
		if o.Error != "" {
			return o.outcome, errors.New(o.Error)
		}
		return o.outcome, nil
	}
}

// talk gives a program a line, answers its "begin" after calling begin, and
// returns the last line that it says.
func talk(cmd *exec.Cmd, line []byte, begin func() error) (said []byte, err error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	_, err = in.Write(append(line, '\n'))
	lines := bufio.NewScanner(out)
	for err == nil && lines.Scan() {
		if said = bytes.Clone(lines.Bytes()); string(said) != "begin" {
			continue
		}
		if err = begin(); err == nil {
			_, err = in.Write([]byte("go on\n"))
		}
	}
	if err == nil {
		err = lines.Err()
	}
	_ = in.Close()
	return said, errors.Join(err, cmd.Wait())
}

// deliveries is how much work a drain has.
func deliveries(spec map[string]any) int {
	n, _ := spec["records"].(int)
	for _, factor := range []string{"consumers", "events"} {
		if f, ok := spec[factor].(int); ok {
			n *= f
		}
	}
	return n
}

func nodeDrain(consumers int) func(settings) map[string]any {
	return func(s settings) map[string]any { return map[string]any{"records": s.Records, "consumers": consumers} }
}

func nodeHot(shape hotShape) func(settings) map[string]any {
	return func(s settings) map[string]any {
		records, events := shape(s)
		return map[string]any{"records": records, "events": events}
	}
}

func nodeAppend(beside bool) func(settings) map[string]any {
	return func(settings) map[string]any { return map[string]any{"beside": beside} }
}

func nodeLatency(settings) map[string]any { return nil }
