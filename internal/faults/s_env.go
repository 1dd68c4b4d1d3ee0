package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/freeport"
)

var environment = []scenario{
	{"25", "everything through PgBouncer in transaction mode", throughBouncer},
	{"22b", "packets are dropped in a network namespace", namespace},
}

func throughBouncer(t *stage) {
	path, err := osexec.LookPath("pgbouncer")
	if err != nil {
		path = "/usr/sbin/pgbouncer"
	}
	if _, err := os.Stat(path); err != nil {
		t.skip("pgbouncer is not installed")
	}
	t.open()
	url := t.bouncer(path)
	t.start(spec{Name: "w1", URL: url, Config: keyline.Config{PollInterval: 300 * time.Millisecond}})
	t.start(spec{Name: "w2", URL: url, ListenURL: t.url()})
	stop := t.load(15)
	t.append("slow", do{"ms": 3000})
	t.append("failing", do{"first": 2})
	t.append("bad", do{"do": "permanent"})
	t.pause(6 * time.Second)
	t.found["appended_under_load"] = stop()
	t.check(allow{dead: 3})
	if n := t.number("select count(*) from keyline.dead_letters where error_code = 'unwritable_outcome'"); n != 0 {
		t.fail("%d outcomes were not written as they were", n)
	}
}

// bouncer starts PgBouncer in transaction mode before the server.
func (t *stage) bouncer(path string) string {
	port, err := freeport.Choose(t.ctx)
	t.must(err, "choose a port")
	u, err := url.Parse(t.server.TCPURL(t.name))
	t.must(err, "read a URL")
	password, _ := u.User.Password()
	config := fmt.Sprintf(`[databases]
%s = host=127.0.0.1 port=%s user=postgres password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 200
default_pool_size = 8
ignore_startup_parameters = extra_float_digits
`, t.name, u.Port(), password, port)
	file := filepath.Join(t.dir, "pgbouncer.ini")
	t.must(os.WriteFile(file, []byte(config), 0o644), "write a file") //nolint:gosec // read by another account
	t.must(os.Chmod(t.dir, 0o755), "open a directory")                //nolint:gosec // likewise
	args := []string{file}
	if os.Getuid() == 0 {
		args = append([]string{"-u", "nobody"}, args...)
	}
	cmd := osexec.Command(path, args...)
	log, err := os.Create(filepath.Join(t.dir, "pgbouncer.log"))
	t.must(err, "make a log")
	cmd.Stdout, cmd.Stderr = log, log
	t.must(cmd.Start(), "start pgbouncer")
	t.onEnd(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = log.Close() })
	t.eventually("pgbouncer listens", 10*time.Second, func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	// Prepared statements do not go through a transaction pooler of this age.
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable&default_query_exec_mode=exec", port, t.name)
}

// namespace puts a worker behind a link that drops everything.
func namespace(t *stage) {
	if os.Getuid() != 0 {
		t.skip("only root makes network namespaces")
	}
	run := func(line string) error {
		f := strings.Fields(line)
		out, err := osexec.Command(f[0], f[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
		return nil
	}
	if err := run("ip netns add keyline-faults"); err != nil {
		t.skip("no network namespace: %v", err)
	}
	t.onEnd(func() { _ = run("ip netns del keyline-faults") })
	for _, line := range []string{"ip link add klf0 type veth peer name klf1 netns keyline-faults", "ip addr add 10.77.0.1/30 dev klf0", "ip link set klf0 up",
		"ip -n keyline-faults addr add 10.77.0.2/30 dev klf1", "ip -n keyline-faults link set klf1 up", "ip -n keyline-faults link set lo up"} {
		if err := run(line); err != nil {
			t.skip("no network namespace: %v", err)
		}
	}
	t.open()
	p, proxied := t.newProxyOn("10.77.0.1:0")
	_ = p
	t.start(spec{Name: "w1", URL: proxied, Wrap: []string{"ip", "netns", "exec", "keyline-faults"}})
	t.append("r", do{"gate": "g", "deaf": true, "only": "a"})
	t.append("q", do{"gate": "g", "only": "tx"})
	t.running("r", 1)
	t.running("q", 1)
	t.start(spec{Name: "w2", Consumers: []string{"a", "b", "tx"}, Config: keyline.Config{PollInterval: time.Hour}})
	t.must(run("ip link set klf0 down"), "drop")
	began := t.house.clock.Mono()
	t.append("r", nil)
	t.append("new", nil)
	t.awaitDone("new", 3, 5*time.Second) // a sentinel beyond reach must not keep others from hearing
	t.eventually("it is taken over", 20*time.Second, func() bool {
		return t.number("select count(*) from crm.delivered_log where mark = 'begin' and worker like 'w2%' and record_key in ('r', 'q') and seq = 1") >= 2
	})
	t.found["takeover_s"] = int((t.house.clock.Mono() - began).Seconds())
	t.gate("g")
	t.awaitDone("r", 6, 20*time.Second)
	t.must(run("ip link set klf0 up"), "mend")
	t.eventually("it comes back as a new incarnation", 60*time.Second, func() bool {
		return t.number("select count(*) from keyline.workers where name = 'w1' and status = 'live'") == 1 && t.number("select count(*) from keyline.workers where name = 'w1'") > 1
	})
	t.append("r", nil)
	t.check(allow{duplicates: 6, overlaps: true}) // two records, three consumers, a window of one
}
