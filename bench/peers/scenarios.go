package main

import (
	"fmt"
	"slices"
	"time"
)

// The peers' settings: as they come, and as fast as they were seen to be.
const (
	byDefault = "default"
	tuned     = "tuned"
)

// scenarios are what is compared; the first side of each is Keyline's.
func scenarios(p contestants) []scenario {
	return slices.Concat([]scenario{
		{name: "drain-1", unit: "events/s", goals: map[string]float64{"river tuned": 3}, sides: p.drain(1)},
		{name: "drain-4", unit: "events/s to 4 consumers", goals: map[string]float64{"river tuned": 10}, sides: p.drain(4)},
		p.drainPinned(),
		p.drainTx(),
		// Nobody works on what is appended.
		{name: "append", unit: "tx/s", goals: map[string]float64{"keyline no wake": 0.9, "keyline NOTIFY always": 4, "river default": 1}, sides: p.append(false)},
		// A worker does, on the same cores. One that does not keep up leaves the cores to the appenders.
		{name: "append-busy", unit: "tx/s", goals: map[string]float64{"keyline no wake": 0.9, "keyline NOTIFY always": 4, "river tuned": 1}, sides: p.append(true)},
		p.latency(50),
		p.latency(500),
		p.latency(2000),
		// Many events of each record, in order.
		{name: "hot-many", unit: "events/s", sides: p.hot(hotMany)},
		{name: "hot-one", unit: "events/s", sides: p.hot(hotOne)},
	}, p.aloneScenarios(), []scenario{
		// Last, as the server then counts statements, which slows it a little.
		p.costs(1),
		p.costs(4),
	})
}

// contestants make the sides of the scenarios.
type contestants struct {
	node    nodePeers
	program string // keyline's; "" for none
	plots   string // the folder for what the program plots; "" for none
}

// Where a side would take minutes for all of the work, it gets less, so that a
// run of it ends in about 20 seconds on two cores.
func (p contestants) drain(consumers int) []side {
	s := []side{keylineSide("default", keylineDrain(consumers))}
	for _, how := range []string{tuned, byDefault} {
		s = append(s,
			riverSide(how, riverWays[how], riverDrain(consumers, riverWays[how])).scaled(only(how == byDefault, atMost(20_000/consumers))),
			gueSide(how, gueDraining[how], gueDrain(consumers, gueDraining[how])).scaled(atMost(map[string]int{tuned: 40_000, byDefault: 2000}[how]/consumers)),
			watermillSide(how, watermillWays[how], watermillDrain(consumers, watermillWays[how])).scaled(only(how == byDefault, atMost(40_000))),
			dbosSide(how, dbosWays[how], dbosDrain(consumers, dbosWays[how])).scaled(atMost(4000/consumers)),
			p.nodeSide(graphileWorker, how, graphileDraining[how], "drain", nodeDrain(consumers)).scaled(only(how == byDefault, atMost(8000/consumers))),
			p.nodeSide(pgBoss, how, pgBossDraining[how], "drain", nodeDrain(consumers)).scaled(only(how == byDefault, atMost(8/consumers))))
	}
	return append(s, dbosSide(plain, dbosWays[plain], dbosDrain(consumers, dbosWays[plain])).scaled(atMost(20_000/consumers)))
}

// append has each peer's settings for work only where there is work.
func (p contestants) append(beside bool) []side {
	s := []side{keylineSide(adaptive, keylineAppend(adaptive, beside)), keylineSide(noWake, keylineAppend(noWake, beside)), keylineSide(always, keylineAppend(always, beside))}
	hows := []string{byDefault}
	if beside {
		hows = []string{tuned, byDefault}
	}
	for _, how := range hows {
		s = append(s,
			riverSide(how, riverWays[how], riverAppend(riverWays[how], beside)),
			gueSide(how, gueFollowing[how], gueAppend(gueFollowing[how], beside)),
			watermillSide(how, watermillWays[how], watermillAppend(watermillWays[how], beside)),
			dbosSide(how, dbosWays[how], dbosAppend(dbosWays[how], beside)),
			p.nodeSide(graphileWorker, how, graphileFollowing[how], "append", nodeAppend(beside)),
			p.nodeSide(pgBoss, how, pgBossFollowing[how], "append", nodeAppend(beside)))
	}
	return s
}

// drainPinned is drain-1 for those who were tuned, and for Keyline also without
// the old transaction.
func (p contestants) drainPinned() scenario {
	sides := slices.DeleteFunc(p.drain(1), func(s side) bool { return s.peer != "keyline" && s.how == byDefault })
	const unpinned = "without the old transaction"
	sides = slices.Insert(sides, 1, keylineSide(unpinned, keylineDrain(1)).scaled(func(s settings) settings { s.Pinned = false; return s }))
	return scenario{name: "drain-pinned", unit: "events/s", goals: map[string]float64{"keyline " + unpinned: 0.7}, sides: sides,
		with: func(s settings) settings { s.Pinned = true; return s }}
}

// drainTx is drain-1 with a handler that writes a row in the transaction that
// also makes its delivery done: what has no such transaction has no part in it.
// Each delivery has a transaction of its own, so that many say no more than some.
func (p contestants) drainTx() scenario {
	sides := []side{keylineSide("default", keylineDrain(1)).scaled(atMost(50_000))}
	for _, how := range []string{tuned, byDefault} {
		sides = append(sides,
			riverSide(how, riverTxWays[how], riverDrain(1, riverTxWays[how])).scaled(atMost(map[string]int{tuned: 50_000, byDefault: 20_000}[how])),
			gueSide(how, gueDraining[how], gueDrain(1, gueDraining[how])).scaled(atMost(map[string]int{tuned: 40_000, byDefault: 2000}[how])))
	}
	const noTx = "its handlers are not given a transaction that makes the message done"
	return scenario{name: "drain-tx", unit: "events/s", goals: map[string]float64{"river tuned": 1},
		with: func(s settings) settings { s.Tx = true; return s }, sides: append(sides,
			watermillSide(byDefault, watermillWays[byDefault], nil).without(noTx),
			dbosSide(byDefault, dbosWays[byDefault], nil).without("a step in a transaction is a workflow's, which is done in another"),
			p.nodeSide(graphileWorker, byDefault, graphileDraining[byDefault], "drain", nil).without(noTx),
			p.nodeSide(pgBoss, byDefault, pgBossDraining[byDefault], "drain", nil).without(noTx))}
}

// costs is a drain of those who were tuned, in which statements, WAL and CPU are counted.
func (p contestants) costs(consumers int) scenario {
	sides := slices.DeleteFunc(p.drain(consumers), func(s side) bool { return s.peer != "keyline" && s.how == byDefault })
	return scenario{name: fmt.Sprintf("costs-%d", consumers), unit: "events/s", sides: sides,
		with: func(s settings) settings { s.Costs, s.Runs = true, 1; return s }}
}

// latency is to be lower than that of each peer at its best.
func (p contestants) latency(rate int) scenario {
	sides, goals := p.latencySides(), map[string]float64{}
	for _, s := range sides[1:] {
		if s.how != byDefault {
			goals[s.peer+" "+s.how] = 1
		}
	}
	return scenario{name: fmt.Sprintf("latency-%d", rate), unit: "ms, median", lower: true, goals: goals, sides: sides,
		with: func(s settings) settings { s.Rate = rate; return s }}
}

func (p contestants) latencySides() []side {
	s := []side{keylineSide("default", keylineLatency)}
	for _, how := range []string{tuned, byDefault} {
		s = append(s,
			riverSide(how, riverWays[how], riverLatency(riverWays[how])),
			gueSide(how, gueFollowing[how], gueLatency(gueFollowing[how])),
			watermillSide(how, watermillWays[how], watermillLatency(watermillWays[how])),
			dbosSide(how, dbosWays[how], dbosLatency(dbosWays[how])),
			p.nodeSide(graphileWorker, how, graphileFollowing[how], "latency", nodeLatency),
			p.nodeSide(pgBoss, how, pgBossFollowing[how], "latency", nodeLatency))
	}
	return append(s, dbosSide(plain, dbosWays[plain], dbosLatency(dbosWays[plain])))
}

// hot has the peers that promise order, of their topic or by key.
func (p contestants) hot(shape hotShape) []side {
	wide := keylineSide("window 64", keylineHot(shape, 64))
	wide.given = own{"window": 64}
	s := []side{keylineSide("default", keylineHot(shape, 0)), wide}
	for _, how := range []string{tuned, byDefault} {
		s = append(s,
			watermillSide(how, watermillWays[how], watermillHot(shape, watermillWays[how])),
			dbosSide(how, dbosWays[how], dbosHot(shape, dbosWays[how])).scaled(map[string]func(settings) settings{tuned: hotAtMost(20, 2000), byDefault: hotAtMost(10, 15)}[how]),
			p.nodeSide(graphileWorker, how, graphileOrdered[how], "hot", nodeHot(shape)).scaled(map[string]func(settings) settings{tuned: hotAtMost(50, 4000), byDefault: hotAtMost(50, 10)}[how]))
	}
	return append(s,
		riverSide(byDefault, riverWays[byDefault], nil).without("it promises no order: its jobs have no key to be ordered by"),
		gueSide(byDefault, gueDraining[byDefault], nil).without("it promises no order: its jobs have no key to be ordered by"),
		p.nodeSide(pgBoss, byDefault, pgBossDefault, "hot", nil).without("this version promises no order: its policies keep the jobs of a key apart, but not in sequence"))
}

func keylineSide(how string, run runner) side {
	return side{peer: "keyline", version: "this tree", how: how, given: own{"config": "default"}, run: run}
}

// River's settings, and those where each handler needs a connection too.
var (
	riverWays = map[string]riverWay{
		tuned:     {workers: 2000, cooldown: 2 * time.Millisecond, poll: 20 * time.Millisecond},
		byDefault: {},
	}
	riverTxWays = map[string]riverWay{
		tuned:     {workers: 32, cooldown: 2 * time.Millisecond, poll: 20 * time.Millisecond},
		byDefault: {},
	}
)

func riverSide(how string, way riverWay, run runner) side {
	return side{peer: "river", version: version("github.com/riverqueue/river"), how: how, given: way.given(), run: run}
}

// gueDraining and gueFollowing are gue's settings for much work and for work
// that comes. Its pool has no default size: its documentation's first example has two.
var (
	gueDraining = map[string]gueWay{
		tuned:     {workers: 16, poll: 5 * time.Millisecond, byRunAt: true},
		byDefault: {workers: 2},
	}
	gueFollowing = map[string]gueWay{
		tuned:     {workers: 4, poll: 2 * time.Millisecond, byRunAt: true},
		byDefault: {workers: 2},
	}
)

func gueSide(how string, way gueWay, run runner) side {
	return side{peer: "gue", version: version("github.com/vgarvardt/gue/v5"), how: how, given: way.given(), run: run}
}

var watermillWays = map[string]watermillWay{
	tuned:     {batch: 20_000, poll: 2 * time.Millisecond, noDeadline: true},
	byDefault: {},
}

func watermillSide(how string, way watermillWay, run runner) side {
	return side{peer: "watermill-sql", version: version("github.com/ThreeDotsLabs/watermill-sql/v4"), how: how, given: way.given(), run: run}
}

// plain is DBOS tuned, with a queue that has no partitions and so no order.
const plain = "tuned, no order"

var dbosWays = map[string]dbosWay{
	tuned:     {poll: time.Millisecond},
	byDefault: {},
	plain:     {poll: time.Millisecond, unordered: true},
}

func dbosSide(how string, way dbosWay, run runner) side {
	return side{peer: "dbos", version: version("github.com/dbos-inc/dbos-transact-golang"), how: how, given: way.given(), run: run}
}

// The peers that run on Node.
const (
	graphileWorker = "graphile-worker"
	pgBoss         = "pg-boss"
)

// graphile-worker's settings for much work, for work that comes, and for order:
// its local queue would take several jobs of one record at once, and a job's
// completion lets the next poll alone see the record's next.
var (
	graphileDraining = map[string]own{
		tuned:     {"concurrent_jobs": 24, "poll_interval_ms": 2000, "local_queue_size": 500, "complete_job_batch_delay_ms": 0},
		byDefault: graphileDefault,
	}
	graphileFollowing = map[string]own{
		tuned:     {"concurrent_jobs": 10, "poll_interval_ms": 2000, "local_queue_size": 100, "complete_job_batch_delay_ms": 0},
		byDefault: graphileDefault,
	}
	graphileOrdered = map[string]own{
		tuned:     {"concurrent_jobs": 4, "poll_interval_ms": 2, "local_queue_size": -1, "complete_job_batch_delay_ms": -1},
		byDefault: graphileDefault,
	}
	graphileDefault = own{"concurrent_jobs": 1, "poll_interval_ms": 2000, "local_queue_size": -1, "complete_job_batch_delay_ms": -1}
)

// pg-boss's settings for much work and for work that comes. It does not poll
// more often than twice a second. It may be told to look again at once, which
// tuned handlers do after a full batch.
var (
	pgBossDraining = map[string]own{
		tuned:     {"workers": 1, "batch_size": 5000, "polling_interval_s": 0.5, "notify_after_full_batch": true},
		byDefault: pgBossDefault,
	}
	pgBossFollowing = map[string]own{
		tuned:     {"workers": 4, "batch_size": 100, "polling_interval_s": 0.5, "notify_after_full_batch": true},
		byDefault: pgBossDefault,
	}
	pgBossDefault = own{"workers": 1, "batch_size": 1, "polling_interval_s": 2, "notify_after_full_batch": false}
)

func (p contestants) nodeSide(peer, how string, given own, scenario string, with func(settings) map[string]any) side {
	return side{peer: peer, version: nodeVersion(peer), how: how, given: given, skip: p.node.skip, run: p.node.run(peer, scenario, given, with)}
}

// scaled is the side with less work. Nil: with all of it.
func (s side) scaled(scale func(settings) settings) side {
	s.scale = scale
	return s
}

// without is the side with no part in the scenario, and why.
func (s side) without(why string) side {
	s.skip = why
	return s
}

// only is f where it is to be.
func only(is bool, f func(settings) settings) func(settings) settings {
	if is {
		return f
	}
	return nil
}
