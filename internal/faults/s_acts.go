package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// commandEnv turns this program into the keyline command.
const commandEnv = "KEYLINE_FAULTS_COMMAND"

// The exit codes of the command that matter here; docs/operations.md has them all.
const (
	exitDone     = 0
	exitFound    = 1
	exitNotFound = 3
	exitNothing  = 4
	exitNotYet   = 5
)

// process is the command as a process of its own, which ends with ctx.
func (t *stage) process(ctx context.Context, args ...string) *osexec.Cmd {
	cmd := osexec.CommandContext(ctx, t.house.self, args...)
	cmd.Env = append(os.Environ(), commandEnv+"=1", "DATABASE_URL="+t.url())
	return cmd
}

// keyline runs the command to its end.
func (t *stage) keyline(args ...string) (code int, output string) {
	ctx, cancel := context.WithTimeout(t.ctx, time.Minute)
	defer cancel()
	cmd := t.process(ctx, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.must(err, "run the command")
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// act is an operator's command.
type act struct {
	args []string
	// seen says whether it has happened. As soon as the command reports success it has.
	seen string
	// again is the exit code of its repetition, where that is not "nothing to do".
	again int
	// harmless: to repeat it is no mistake, it only changes nothing.
	harmless bool
}

// digest is all that an act may change.
const digest = `select md5(concat_ws('|',
	(select string_agg(d::text, ',' order by id) from keyline.dead_letters d), (select string_agg(c::text, ',' order by id) from keyline.consumers c),
	(select string_agg(k::text, ',' order by record_id, consumer_id) from keyline.checkpoints k), (select string_agg(c::text, ',' order by id) from keyline.commands c),
	(select count(*) from keyline.events), (select count(*) from keyline.audit), (select string_agg(a.name || a.revoked_at, ',' order by id) from keyline.api_tokens a),
	(select count(*) from keyline.skips)))`

// actsShow: no command says "done" of what has not happened, none does it twice,
// and one that nobody has applied says so.
func actsShow(t *stage) {
	t.open()
	t.exec("create table faults.outage (up boolean)")
	s := spec{Name: "w1", Consumers: []string{"a", "parks", "slow", "off", "ends"}, Delay: time.Hour, Attempts: 3,
		Define: map[string]definition{"a": {Attempts: 1}, "parks": {Attempts: 1, Park: true}}}
	w := t.start(s)
	second := s
	second.Name = "w2"
	other := t.start(second)
	fails := func(record, consumer, how string) uuid.UUID {
		return t.appendType(record, "fault.staged", do{"do": how, "only": consumer, "first": map[string]int{"mends": 1}[how]})
	}
	retried, whole := fails("retried", "slow", "mends"), fails("whole", "slow", "mends")
	fails("skipped", "parks", "outage")
	for i := range 6 {
		fails(fmt.Sprintf("dead%d", i), "a", "outage")
	}
	t.eventually("all have failed", 30*time.Second, func() bool {
		return t.number("select count(*) from keyline.dead_letters where status = 'open'") == 7 && len(t.dueTimes()) == 2
	})
	letter := func(i int) string {
		return fmt.Sprint(t.number("select d.id from keyline.dead_letters d join keyline.records r on r.id = d.record_id where r.record_key = $1", fmt.Sprintf("dead%d", i)))
	}
	t.exec("insert into faults.outage values (true)")
	t.awaitDone("%", 5*9-9, 20*time.Second)
	inBackoff := func(record string) string {
		return "select count(*) = 0 from keyline.checkpoints k join keyline.records r on r.id = k.record_id where r.record_key = '" + record + "' and k.state in ('backoff', 'parked')"
	}
	status := func(name, status string) string {
		return "select status = '" + status + "' and (select count(*) from keyline.audit where target = '" + name + "') > 0 from keyline.consumers where name = '" + name + "'"
	}
	dead := func(where, status string) string {
		return "select bool_and(status " + status + ") from keyline.dead_letters d join keyline.records r on r.id = d.record_id where r.record_key " + where
	}
	for _, a := range []act{
		{args: []string{"retry", retried.String(), "--consumer", "slow"}, seen: inBackoff("retried")},
		{args: []string{"retry", whole.String()}, seen: inBackoff("whole")},
		{args: []string{"skip", "skipped", "parks"}, seen: inBackoff("skipped")},
		{args: []string{"dead-letters", "retry", letter(0)}, seen: dead("= 'dead0'", "<> 'open'")},
		{args: []string{"dead-letters", "resolve", letter(1)}, seen: dead("= 'dead1'", "= 'resolved'")},
		{args: []string{"dead-letters", "retry", "--record", "dead2"}, seen: dead("= 'dead2'", "<> 'open'")},
		{args: []string{"dead-letters", "resolve", "--all"}, seen: dead("like 'dead%'", "<> 'open'")},
		{args: []string{"consumers", "pause", "off"}, seen: status("off", "paused")},
		{args: []string{"consumers", "resume", "off"}, seen: status("off", "active")},
		{args: []string{"consumers", "disable", "off"}, seen: status("off", "disabled")},
		{args: []string{"consumers", "retire", "ends"}, seen: status("ends", "retired")},
		{args: []string{"drain", "w2"}, seen: "select status = 'left' from keyline.workers where name = 'w2'", again: exitNotFound},
		{args: []string{"prune", "--older-than", "1us"}, seen: "select count(*) < 9 from keyline.events", harmless: true},
		{args: []string{"token", "create", "someone", "--role", "viewer", "--expires-in", "1d"}, seen: "select count(*) = 1 from keyline.api_tokens where revoked_at is null"},
		{args: []string{"token", "revoke", "1"}, seen: "select count(*) = 0 from keyline.api_tokens where revoked_at is null"},
	} {
		t.perform(a)
	}
	if !other.alive() {
		t.fail("a drained worker's process has ended, which was its program's to say")
	}
	t.unapplied(w)
	// Nobody lives who would recover by itself.
	t.append("held", do{"gate": "never", "only": "a"})
	w = t.start(s)
	t.running("held", 1)
	w.kill()
	t.pause(2500 * time.Millisecond) // before its lease has ended it seems to live
	t.perform(act{args: []string{"recover"}, seen: "select count(*) = 0 from keyline.mailboxes where claimed_by is not null"})
	t.gate("never")
	t.start(s)
	t.eventually("everything settles", 30*time.Second, func() bool { return t.try("select count(*) from keyline.mailboxes") == 0 })
	t.check(allow{duplicates: 4, ignored: map[string]int64{"off": 2}, pruned: true, dead: int64(t.number("select count(*) from keyline.dead_letters where status = 'resolved'"))})
}

func (t *stage) truth(sql string) bool {
	var yes bool
	t.must(t.pool.QueryRow(t.ctx, sql).Scan(&yes), sql)
	return yes
}

func (t *stage) text(sql string) (s string) {
	t.must(t.pool.QueryRow(t.ctx, sql).Scan(&s), sql)
	return s
}

// perform does an act and looks at once, then does it again.
func (t *stage) perform(a act) {
	if t.truth(a.seen) {
		t.fail("%v: it is so already, nothing is tested", a.args)
	}
	audited := t.number("select count(*) from keyline.audit")
	args := append(a.args, "--yes", "--reason", "staged", "--actor", "op")
	code, output := t.keyline(args...)
	switch {
	case code != exitDone:
		t.fail("%v: exit code %d: %s", a.args, code, output)
		return
	case !t.truth(a.seen):
		t.fail("%v reports success, and nothing has changed: %s", a.args, output)
	case t.number("select count(*) from keyline.audit") <= audited:
		t.fail("%v has left no line in the audit", a.args)
	}
	// What it set off comes to its end: then only the repetition can change anything.
	before := t.text(digest)
	t.eventually("nothing changes", 30*time.Second, func() bool {
		last := before
		t.pause(300 * time.Millisecond)
		before = t.text(digest)
		return before == last && t.number("select count(*) from keyline.consumers where sweep is not null") == 0
	})
	code, output = t.keyline(args...)
	want := cmp.Or(a.again, exitNothing)
	if a.harmless {
		want = exitDone
	}
	if code != want {
		t.fail("%v again: exit code %d, want %d: %s", a.args, code, want, output)
	}
	if t.text(digest) != before {
		t.fail("%v again has changed something: %s", a.args, output)
	}
}

// unapplied: a command that no worker applies is no success, and is kept.
func (t *stage) unapplied(w *worker) {
	t.exec("delete from faults.outage")
	t.append("last", do{"do": "outage", "only": "a"})
	t.eventually("it is dead", 20*time.Second, func() bool { return t.number("select count(*) from keyline.dead_letters where status = 'open'") == 1 })
	t.eventually("it rests", 20*time.Second, func() bool { return t.number("select count(*) from keyline.mailboxes") == 0 })
	id := fmt.Sprint(t.number("select id from keyline.dead_letters where status = 'open'"))
	w.signal(syscall.SIGTERM)
	if !w.ended(40 * time.Second) {
		t.fatal("a worker does not stop")
	}
	if code, output := t.keyline("dead-letters", "retry", id, "--wait", "1s", "--yes"); code != exitNotYet {
		t.fail("without a worker a retry's exit code is %d, want %d: %s", code, exitNotYet, output)
	}
	if !t.truth("select count(*) = 1 from keyline.dead_letters where status = 'open'") || t.number("select count(*) from keyline.commands where applied_at is null") != 1 {
		t.fail("a command that nobody has applied is not kept")
	}
	t.exec("insert into faults.outage values (true)")
}
