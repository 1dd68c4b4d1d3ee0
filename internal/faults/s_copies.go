package main

import (
	"fmt"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/core"
	"github.com/keylinehq/keyline/internal/pgdev"
)

var copies = []scenario{
	{"58", "a dump is restored beside the workers that it speaks of", restoredBeside},
	{"59", "a server without the last commits takes over", lastCommitsLost},
}

// tool runs one of PostgreSQL's programs.
func (t *stage) tool(name string, args ...string) {
	path := filepath.Join(t.server.BinDir(), name)
	if _, err := os.Stat(path); err != nil {
		t.skip("%s is not installed", name)
	}
	if out, err := osexec.Command(path, args...).CombinedOutput(); err != nil {
		t.fatal("%s: %v: %s", name, err, out)
	}
}

// restoredBeside: the copy has the rows of workers that live, and live elsewhere. Whoever works on the copy finds them lost there,
// and leaves them alone where they are.
func restoredBeside(t *stage) {
	t.open()
	t.start(spec{Name: "w1"})
	t.start(spec{Name: "w2"})
	stop := t.load(10)
	t.append("held", do{"gate": "g"})
	t.append("failing", do{"first": 3})
	t.running("held", 1)
	file := filepath.Join(t.dir, "dump")
	t.tool("pg_dump", "-Fc", "-f", file, t.url())
	t.found["appended_under_load"] = stop()

	copied := *t
	copied.name, copied.found, copied.problems, copied.ends = t.name+"_copy", map[string]any{}, nil, nil
	t.onEnd(func() { copied.end(true) })
	t.exec("create database " + copied.name)
	t.tool("pg_restore", "-j2", "-d", copied.url(), file)
	copied.pool = t.newPool(copied.url(), 8)
	waiting := copied.number("select count(*) from keyline.mailboxes where claimed_by is not null")
	if t.found["claimed_in_copy"] = waiting; waiting == 0 {
		t.fail("the copy has no claims: nothing was tested")
	}
	copied.start(spec{Name: "w3"})
	copied.eventually("the copy's workers are found lost", 30*time.Second, func() bool {
		return copied.number("select count(*) from keyline.workers where status = 'lost'") == 2
	})
	copied.gate("g")
	copied.check(allow{duplicates: 300, overlaps: true})
	t.problems = append(t.problems, copied.problems...)
	t.found["events_in_copy"] = copied.found["events"]
	t.gate("g")
	t.check(allow{})
	if n := t.number("select count(*) from keyline.workers where status <> 'live'"); n != 0 {
		t.fail("%d workers were lost", n)
	}
	t.uncut("w1", "w2")
}

// uncut: nobody has ended a session of theirs.
func (t *stage) uncut(workers ...string) {
	for _, name := range workers {
		log, err := os.ReadFile(filepath.Join(t.dir, name+".log"))
		t.must(err, "read a log")
		if n := strings.Count(string(log), "terminating connection due to administrator command"); n != 0 {
			t.fail("%s was cut off: %d lines of its log say so", name, n)
		}
	}
}

// lastCommitsLost: a base backup takes over, which has nothing of what was committed after it, and is on another timeline:
// a standby that was behind, or a restore to a point in time. Lost are events, with outcomes that workers still have in hand, a
// registration, and changes of the registry.
func lastCommitsLost(t *stage) {
	t.openOwn(pgdev.Options{TCP: true, Durable: true})
	p, through := t.newProxy()
	config := keyline.Config{Lease: 12 * time.Second} // the outage is no reason to fence
	for _, name := range []string{"w1", "w2"} {
		t.start(spec{Name: name, URL: through, ListenURL: through, Direct: through, Config: config})
	}
	stop := t.load(10)
	t.append("r", do{"gate": "first"})
	t.running("r", 1)
	t.pause(time.Second)
	dir, err := os.MkdirTemp("", "keyline-pg-copy-")
	t.must(err, "make a directory")
	t.onEnd(func() { _ = os.RemoveAll(dir) })
	t.tool("pg_basebackup", "-X", "stream", "-c", "fast", "-D", filepath.Join(dir, "data"), "-d", t.server.URL("postgres"))

	// Under a claim that is not lost, all of r is delivered, which is.
	t.gate("first")
	for range 4 {
		t.append("r", nil)
	}
	t.append("r", do{"gate": "second", "deaf": true, "only": "a"})
	t.running("r", 6)
	t.awaitDone("r", 17, 20*time.Second)
	t.start(spec{Name: "w3", Consumers: []string{"late"}, Begin: true, URL: through, ListenURL: through, Direct: through, Config: config})
	t.eventually("it has caught up", 30*time.Second, func() bool { return t.try("select count(*) from keyline.consumers where status = 'backfilling'") == 0 })
	registry := t.store()
	t.must(registry.SetStatus(t.ctx, "b", core.Paused, "op", ""), "pause")
	t.must(registry.SetStatus(t.ctx, "b", core.Active, "op", ""), "resume")
	stop()
	heads, tokens := t.number("select sum(head) from keyline.records"), t.number("select last_value from keyline.tokens")

	t.server.Kill()
	t.must(takeOver(dir, t.server), "make the copy one that takes over")
	s, err := pgdev.Start(t.ctx, pgdev.Options{Dir: dir, TCP: true, Durable: true, Settings: settings})
	t.must(err, "start the copy")
	t.onEnd(func() { _ = s.Stop() })
	t.server = s
	t.pool = t.newPool(t.url(), 24)
	t.eventually("it takes writes", 30*time.Second, func() bool { return t.try("select pg_is_in_recovery()::integer") == 0 })
	if now := t.number("select sum(head) from keyline.records"); now >= heads {
		t.fail("nothing was lost, and so nothing was tested")
	}
	if n := t.number("select count(*) from keyline.mailboxes m join keyline.records r on r.id = m.record_id where r.record_key = 'r' and m.claimed_by is not null and r.head = 1"); n != 1 {
		t.fail("the claim of r was lost too: half of it was tested")
	}
	t.gate("second") // so that its outcome is at hand at once
	u, err := url.Parse(s.TCPURL(t.name))
	t.must(err, "read a URL")
	p.leadTo(u.Host)
	p.cutAll()
	t.eventually("all come back as new incarnations", 60*time.Second, func() bool {
		return t.try("select count(*) from keyline.workers w where status = 'live' and timeline = keyline.timeline()") == 3
	})
	// What was delivered of the events that are lost was not owed.
	t.exec("delete from crm.delivered_log l where not exists (select from keyline.events e join keyline.records r on r.id = e.record_id where r.record_key = l.record_key and e.seq = l.seq)")
	t.gate("first")
	for i := range 10 {
		t.append(fmt.Sprintf("load%d", i), nil)
		t.append("r", nil)
	}
	t.eventually("the consumer that was lost is there again", 30*time.Second, func() bool {
		return t.try("select count(*) from keyline.consumers where name = 'late' and status = 'active'") == 1
	})
	if now := t.number("select last_value from keyline.tokens"); now <= tokens {
		t.fail("tokens go on at %d, and had come to %d", now, tokens)
	}
	t.check(allow{duplicates: 200, overlaps: true, within: 90 * time.Second})
	t.noCrashCharged()
}

// takeOver makes a base backup in dir one that recovers to where it is whole and goes on from there, and gives it to whom the other belongs to.
func takeOver(dir string, from *pgdev.Server) error {
	data := filepath.Join(dir, "data")
	conf, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = conf.WriteString("restore_command = 'false'\nrecovery_target = 'immediate'\nrecovery_target_action = 'promote'\n"); err != nil {
		return err
	}
	if err := conf.Close(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "recovery.signal"), nil, 0o600); err != nil {
		return err
	}
	password, err := os.ReadFile(filepath.Join(filepath.Dir(from.DataDir()), "password"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "password"), password, 0o600); err != nil {
		return err
	}
	info, err := os.Stat(from.DataDir())
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(owner.Uid), int(owner.Gid))
	})
}
