package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/clock"
	"github.com/keylinehq/keyline/internal/pgdev"
)

var acts = []scenario{
	{"34b", "four operators act at once, are killed and frozen in the middle", operatorsRace(false)},
	{"34c", "the same, while the server crashes and sessions are ended", operatorsRace(true)},
	{"34d", "an outbox is taken over and given back by rivals who are killed and frozen", outboxRace(false)},
	{"34e", "the same, while the server crashes and sessions are ended", outboxRace(true)},
}

// raceRecords is how many records they act on: few, so that they meet.
const raceRecords = 8

// operatorsRace: whatever operators do at the same time to the same things, and wherever an act is broken off, the state is one that the
// acts could have led to one after the other, the audit says which, whoever lost was told, and no delivery is lost but those given up.
func operatorsRace(crashing bool) func(*stage) {
	return func(t *stage) {
		if crashing {
			t.openOwn(pgdev.Options{Durable: true})
		} else {
			t.open()
		}
		t.exec("create table faults.outage (up boolean)")
		s := spec{Consumers: []string{"a", "parks", "slow", "tx", "off"}, Delay: 500 * time.Millisecond, Attempts: 1000, Ends: true,
			Config: keyline.Config{Lease: 4 * time.Second, ShutdownGrace: 2 * time.Second},
			Define: map[string]definition{"a": {Attempts: 1}, "parks": {Attempts: 1, Park: true}, "slow": {Attempts: 3}}}
		crew := t.crew(s, "w1", "w2")
		random := clock.NewRand(t.house.seed ^ 0x5eed)
		stopTrouble := t.trouble(clock.NewRand(t.house.seed ^ 0x1111))
		race := t.rivals(4, t.chooseAct)
		var rebuilding *worker
		dead := t.house.clock.Mono()
		for race.on() {
			t.pause(time.Duration(100+random.IntN(400)) * time.Millisecond)
			crew.keep()
			switch n := random.IntN(12); {
			case n < 3: // downstream comes and goes
				t.try("with gone as (delete from faults.outage returning 1) select count(*) from gone")
			case n < 5:
				t.try("with back as (insert into faults.outage values (true) returning 1) select count(*) from back")
			case n < 7: // a projection is built anew, by a process that does not last
				if rebuilding != nil {
					rebuilding.kill()
				}
				anew := spec{Name: "anew", Consumers: []string{"anew"}, Begin: true, Config: s.Config}
				rebuilding = t.launch(anew)
			case crashing && n < 9:
				t.try("select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
			case crashing && n == 9 && t.house.clock.Mono()-dead > 6*time.Second:
				dead = t.house.clock.Mono()
				t.server.Kill()
				t.must(t.server.Restart(t.ctx), "restart")
			}
		}
		tried := race.stop()
		stopTrouble()
		t.eventually("it answers", 20*time.Second, func() bool { return t.try("select 1") == 1 })
		if rebuilding != nil {
			rebuilding.kill()
		}
		t.start(spec{Name: "anew", Consumers: []string{"anew"}, Begin: true, Config: s.Config})
		t.exec("insert into faults.outage values (true)")
		t.settleRace(crew)
		t.balance(crashing)
		if crashing {
			t.exec(forgetUnseen)
		}
		t.check(allow{duplicates: 200, pruned: true, overlaps: crashing, ignored: map[string]int64{"off": anyNumber},
			within: 2 * time.Minute, dead: int64(t.number(deadUndelivered))})
		t.judgeActs(tried)
		t.summary(tried)
	}
}

// deadUndelivered are the dead letters that were never delivered.
const deadUndelivered = `select count(*) from keyline.dead_letters d join keyline.records r on r.id = d.record_id join keyline.consumers c on c.id = d.consumer_id
	where not exists (select from crm.delivered_log l where l.mark = 'done' and l.record_key = r.record_key and l.consumer = c.name and l.seq = d.seq)`

// forgetUnseen takes dead letters out of the log whose first run is not in it, since the server that keeps it was away: their retry, beside
// younger events, would pass for their first run.
const forgetUnseen = `delete from crm.delivered_log l using keyline.dead_letters d, keyline.records r, keyline.consumers c
	where r.id = d.record_id and c.id = d.consumer_id and l.record_key = r.record_key and l.consumer = c.name and l.seq = d.seq
		and not exists (select from crm.delivered_log f where f.record_key = l.record_key and f.consumer = l.consumer and f.seq = l.seq and f.mark = 'begin' and f.attempt = 1)`

// chooseAct draws an act, and what it is about from what there is.
func (t *stage) chooseAct(random *clock.Rand) choice {
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	record := func() string { return fmt.Sprintf("load%d", random.IntN(raceRecords)) }
	letter := func(status string) string {
		n := int64(random.IntN(1000))
		return strconv.Itoa(max(t.try(`select id from (select d.id, row_number() over (order by d.id) - 1 as n, count(*) over () as of
			from keyline.dead_letters d where d.status like $1) x where n = $2 % of`, status, n), 1)) // none yet, or no server: the first that there may come to be
	}
	const wait = "--wait=4s"
	status := func(verb, name string) choice {
		return choice{verb, name, []string{"consumers", verb, name}}
	}
	switch random.IntN(22) {
	case 0, 1:
		return status("pause", pick("a", "parks", "tx", "off"))
	case 2, 3, 4:
		return status("resume", pick("a", "parks", "tx", "off", "off"))
	case 5:
		return status("disable", "off")
	case 6, 7:
		id := letter(pick("open", "open", "open", "%"))
		return choice{"retry dead letter", id, []string{"dead-letters", "retry", id, wait}}
	case 8:
		id := letter(pick("open", "open", "%"))
		return choice{"resolve dead letter", id, []string{"dead-letters", "resolve", id, wait}}
	case 9:
		ids := []string{letter("%"), letter("open"), letter("open")}
		return choice{"retry several", fmt.Sprint(ids), append([]string{"dead-letters", "retry", wait}, ids...)}
	case 10, 11:
		return choice{"retry dead letters", "all", []string{"dead-letters", "retry", "--consumer", pick("a", "parks", "slow")}}
	case 12:
		r := record()
		return choice{"resolve dead letters", r, []string{"dead-letters", "resolve", "--record", r}}
	case 13, 14:
		r, c := record(), pick("parks", "parks", "slow")
		return choice{"skip", r + " " + c, []string{"skip", r, c, wait}}
	case 15:
		var event string
		_ = t.pool.QueryRow(t.ctx, `select e.id::text from keyline.events e join keyline.failures f on f.record_id = e.record_id and f.seq = e.seq
			order by f.at desc offset $1 limit 1`, random.IntN(20)).Scan(&event) // none yet, or no server
		if event == "" {
			event = "00000000-0000-0000-0000-000000000000"
		}
		return choice{"retry", event, []string{"retry", event, wait}}
	case 16:
		return choice{"recover", "", []string{"recover"}}
	case 17:
		return choice{"prune", "", []string{"prune", "--older-than", "1us", "--keep-failures", "1us"}}
	case 18:
		name := fmt.Sprintf("token%d", random.IntN(40))
		return choice{"create token", name, []string{"token", "create", name, "--role", "viewer", "--expires-in", "1d"}}
	case 19:
		id := strconv.Itoa(1 + random.IntN(8))
		return choice{"revoke token", id, []string{"token", "revoke", id}}
	case 20:
		w := pick("w1", "w2")
		return choice{"drain", w, []string{"drain", w, "--wait", "10s"}}
	}
	return status("pause", "off")
}

// trouble appends events, some of which fail for as long as what is downstream is away, or once.
func (t *stage) trouble(random *clock.Rand) (stop func()) {
	ctx, cancel := context.WithCancel(t.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for clock.Sleep(ctx, t.house.clock, 25*time.Millisecond) == nil {
			var d do
			switch random.IntN(6) {
			case 0, 1:
				d = do{"do": "outage", "only": []string{"a", "parks", "slow"}[random.IntN(3)]}
			case 2:
				d = do{"first": 1, "only": []string{"tx", "off", "slow"}[random.IntN(3)]}
			}
			short, end := context.WithTimeout(ctx, 5*time.Second)
			_, _ = t.client.Append(short, t.pool, event(fmt.Sprintf("load%d", random.IntN(raceRecords)), d)) // the server may be away
			end()
		}
	}()
	return func() { cancel(); <-ended }
}

// crew is workers that somebody starts again when they have ended.
type crew struct {
	t       *stage
	s       spec
	members map[string]*worker
}

func (t *stage) crew(s spec, names ...string) *crew {
	c := &crew{t, s, map[string]*worker{}}
	for _, name := range names {
		s.Name = name
		c.members[name] = t.start(s)
	}
	return c
}

// keep starts those that have ended. They come when they come.
func (c *crew) keep() {
	for name, w := range c.members {
		if !w.alive() {
			c.s.Name = name
			c.members[name] = c.t.launch(c.s)
		}
	}
}

// settleRace brings everything to rest: all consumers are active, and all that is dead and can be delivered is.
func (t *stage) settleRace(c *crew) {
	o := t.operator()
	for _, name := range []string{"a", "parks", "slow", "tx", "off"} {
		t.eventually(name+" is active", time.Minute, func() bool {
			c.keep()
			_ = o.ResumeConsumer(t.ctx, name, "") // it is so, or is still being cleared
			return t.number("select count(*) from keyline.consumers where name = $1 and status = 'active'", name) == 1
		})
	}
	t.eventually("all dead letters are delivered", 90*time.Second, func() bool {
		c.keep()
		if t.number("select count(*) from keyline.dead_letters where status = 'open'") > 0 {
			ctx, cancel := context.WithTimeout(t.ctx, 10*time.Second)
			defer cancel()
			_, _ = o.RetryDeadLetters(ctx, keyline.DeadLetterFilter{}, "", keyline.BulkOptions{}) // again, until none is open
		}
		return t.number("select count(*) from keyline.dead_letters where status in ('open', 'retrying')") == 0
	})
	t.eventually("everything settles", time.Minute, func() bool {
		c.keep()
		return t.try("select (select count(*) from keyline.consumers where sweep is not null or status = 'backfilling') + (select count(*) from keyline.mailboxes)") == 0
	})
}

// balance counts, of each consumer on each record, the events that it never succeeded with: as many as operators have given up. It goes
// by the log and the commands, which nobody prunes.
func (t *stage) balance(crashing bool) {
	rows, err := t.pool.Query(t.ctx, `select r.record_key, c.name, r.head, coalesce(l.first, 0), coalesce(l.n, 0), coalesce(g.n, 0)
		from keyline.records r cross join keyline.consumers c
		left join (select record_key, consumer, min(seq) as first, count(distinct seq) as n from crm.delivered_log where mark = 'done' group by 1, 2) l
			on l.record_key = r.record_key and l.consumer = c.name
		left join (select record_id, consumer_id, count(*) as n from keyline.commands where done and kind in ('skip', 'resolve_dead_letter') group by 1, 2) g
			on g.record_id = r.id and g.consumer_id = c.id
		where c.name <> 'off'`)
	t.must(err, "read the balance")
	var record, consumer string
	var head, first, done, given int
	sum := 0
	for rows.Next() {
		t.must(rows.Scan(&record, &consumer, &head, &first, &done, &given), "read the balance")
		if consumer == "anew" { // it is owed what was there when it came
			if head -= first - 1; first == 0 {
				head = 0
			}
		}
		sum += given
		if lost := head - done; lost > given || lost < given && !crashing {
			t.fail("%s has not succeeded with %d events of %s, and %d were given up", consumer, lost, record, given)
		}
	}
	t.must(rows.Err(), "read the balance")
	t.found["given_up"] = sum
	if crashing {
		return
	}
	if n := t.number(`select count(*) from (select from crm.delivered_log where mark = 'done' and consumer not in ('off', 'anew')
		group by consumer, record_key, seq having count(*) > 1) x`); n > 0 {
		t.fail("%d deliveries succeeded twice, and no worker had died", n)
	}
	if n := t.number(backwards, []string{"parks", "tx"}); n > 0 {
		t.fail("%d deliveries began after a younger one of their record", n)
	}
}
