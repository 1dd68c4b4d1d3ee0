package main

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/keylinehq/keyline"
)

// line is a line of the audit, with what became of the command that the act has given.
type line struct {
	ID            int64
	Actor, Action string
	Target        string
	Detail        map[string]any
	Applied, Done *bool
}

// statusActs are what each act on a consumer's status leads to, by the status that it finds.
var statusActs = map[string]map[string]string{
	"consumer_paused":   {"active": "paused"},
	"consumer_active":   {"paused": "active", "disabled": "active"},
	"consumer_disabled": {"active": "disabled", "paused": "disabled", "backfilling": "disabled"},
}

// actions are what the audit calls what acts do.
var actions = map[string][]string{
	"pause": {"consumer_paused"}, "resume": {"consumer_active"}, "disable": {"consumer_disabled"},
	"retry dead letter": {"retry_dead_letter"}, "retry several": {"retry_dead_letter"}, "retry dead letters": {"retry_dead_letter"},
	"resolve dead letter": {"resolve_dead_letter"}, "resolve dead letters": {"resolve_dead_letter"},
	"skip": {"skip"}, "retry": {"retry", "retry_dead_letter"}, "recover": {"mark_worker_lost", "recover_stale_claims"}, "prune": {"prune"},
	"create token": {"create_token"}, "revoke token": {"revoke_token"}, "drain": {"drain_worker"},
	"prepare": {"outbox_prepared"}, "backfill": {"outbox_backfilled"}, "cutover": {"outbox_cutover"}, "back": {"outbox_back"}, "status": {},
}

// audited reads the audit by actor, and in its order.
func (t *stage) audited() (all []line, of map[string][]line) {
	rows, err := t.pool.Query(t.ctx, `select a.id, a.actor, a.action, a.target, a.detail, c.applied_at is not null, c.done
		from keyline.audit a left join keyline.commands c on c.id = (a.detail ->> 'command')::bigint order by a.id`)
	t.must(err, "read the audit")
	all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[line])
	t.must(err, "read the audit")
	of = map[string][]line{}
	for _, l := range all {
		of[l.Actor] = append(of[l.Actor], l)
	}
	return all, of
}

// judgeActs compares what each operator was told with what the audit says of the act, and both with what is.
func (t *stage) judgeActs(done []tried) {
	all, of := t.audited()
	for _, a := range done {
		lines := of[a.actor]
		if wrong := judge(a, lines); wrong != "" {
			t.fail("%s: %s; the audit has %d lines", a, wrong, len(lines))
		}
	}
	// The audit, in its order, is a history that leads to what is.
	status := map[string]string{"a": "active", "parks": "active", "slow": "active", "tx": "active", "off": "active"}
	for _, l := range all {
		if next, ok := statusActs[l.Action]; ok {
			to, may := next[status[l.Target]]
			if !may {
				t.fail("by the audit, line %d, %s became %s while it was %s", l.ID, l.Target, l.Action, status[l.Target])
			}
			status[l.Target] = to
		}
	}
	for name, want := range status {
		if got := t.text("select status from keyline.consumers where name = '" + name + "'"); got != want {
			t.fail("%s is %s, by the audit it is %s", name, got, want)
		}
	}
	for what, sql := range map[string]string{
		"commands without one line of audit that gave them": `select count(*) from keyline.commands c
			where (select count(*) from keyline.audit a where (a.detail ->> 'command')::bigint = c.id and a.action = c.kind and not a.detail ? 'joined') <> 1`,
		"resolved dead letters whom nobody has resolved": `select count(*) from keyline.dead_letters d where d.status = 'resolved' and not exists (
			select from keyline.commands c where c.done and c.kind in ('skip', 'resolve_dead_letter') and c.actor = d.resolved_by and c.record_id = d.record_id and c.consumer_id = d.consumer_id)`,
		"dead letters that were resolved and are not": `select count(*) from keyline.commands c join keyline.dead_letters d on d.id = c.dead_letter_id
			where c.kind = 'resolve_dead_letter' and c.done and d.status <> 'resolved'`,
		"tokens that were made or revoked in another way than the audit says": `select count(*) from keyline.api_tokens k
			where (select count(*) from keyline.audit a where a.action = 'create_token' and a.target = 'token ' || k.name and a.actor = k.created_by) <> 1
				or (select count(*) from keyline.audit a where a.action = 'revoke_token' and a.target = 'token ' || k.name) <> (k.revoked_at is not null)::integer`,
		"tokens that the audit has and nobody can find": `select count(*) from keyline.audit a where a.action = 'create_token'
			and not exists (select from keyline.api_tokens k where 'token ' || k.name = a.target)`,
	} {
		if n := t.number(sql); n > 0 {
			t.fail("%d %s", n, what)
		}
	}
}

// judge says what is wrong with what an operator was told, by the lines of the audit that the act has written.
func judge(a tried, lines []line) string {
	mine := actions[a.kind]
	for _, l := range lines {
		if !slices.Contains(mine, l.Action) {
			return "the audit says " + l.Action
		}
		if _, gave := l.Detail["command"]; gave && !*l.Applied {
			return fmt.Sprintf("command %v was never applied", l.Detail["command"])
		}
	}
	applied := 0
	for _, l := range lines {
		if l.Done != nil && *l.Done {
			applied++
		}
	}
	single := !slices.Contains([]string{"retry", "retry several", "retry dead letters", "resolve dead letters", "recover"}, a.kind)
	switch {
	case single && len(lines) > 1:
		return "it was done more than once"
	case a.code == killed, a.code == exitNotYet:
		return "" // nobody was told: all or nothing, or given and applied later
	case a.code == exitFound && !single && len(a.out) > 0:
		return "" // some of many went wrong, as it has said
	case a.code == exitNotFound && len(lines) > 0:
		return "it was not found, and done"
	case a.code == exitNothing:
		return judgeNothing(a, lines, applied)
	case a.code == exitDone:
		return judgeDone(a, lines, applied)
	case a.code != exitNotFound:
		return "nobody knows this exit code"
	}
	return ""
}

// judgeNothing: who was told that there was nothing to do has changed nothing.
func judgeNothing(a tried, lines []line, applied int) string {
	switch {
	case applied > 0:
		return "it was told that there was nothing to do, and has done something"
	case a.told == "":
		return "it was not told why"
	}
	for _, l := range lines {
		if l.Done == nil && a.kind != "drain" { // a worker may be lost while it drains
			return "it was refused, and is in the audit"
		}
	}
	return ""
}

// judgeDone: who was told that it is done has done it.
func judgeDone(a tried, lines []line, applied int) string {
	var told struct {
		Applied int           `json:"applied"`
		Nothing int           `json:"nothing_to_do"`
		Changed bool          `json:"changed"`
		Rows    int           `json:"rows"`
		Events  int           `json:"events"`
		Acts    []keyline.Act `json:"acts"`
	}
	if err := json.Unmarshal(a.out, &told); err != nil {
		return fmt.Sprintf("it printed %q: %v", a.out, err)
	}
	detail := func(name string) int {
		if len(lines) == 0 {
			return 0
		}
		n, _ := lines[0].Detail[name].(float64)
		return int(n)
	}
	switch a.kind {
	case "retry dead letter", "resolve dead letter", "skip", "retry", "retry several":
		if applied != len(told.Acts) || applied == 0 {
			return fmt.Sprintf("%d acts were told of, %d were applied", len(told.Acts), applied)
		}
	case "retry dead letters", "resolve dead letters":
		if applied != told.Applied || len(lines) != told.Applied+told.Nothing {
			return fmt.Sprintf("it was told of %d applied and %d that needed nothing, %d were applied", told.Applied, told.Nothing, applied)
		}
	case "prune":
		if detail("events") != told.Events {
			return fmt.Sprintf("it was told of %d events, the audit says %d", told.Events, detail("events"))
		}
	case "prepare":
		if told.Changed != (len(lines) == 1) {
			return fmt.Sprintf("it was told that it changed something: %v", told.Changed)
		}
	case "backfill":
		if (told.Rows > 0) != (len(lines) == 1) {
			return fmt.Sprintf("it was told of %d rows", told.Rows)
		}
	case "cutover":
		if len(lines) != 1 || detail("rows") != told.Rows {
			return fmt.Sprintf("it was told of %d rows, the audit says %d", told.Rows, detail("rows"))
		}
	case "status":
	default:
		if len(lines) == 0 {
			return "it is not in the audit"
		}
	}
	return ""
}
