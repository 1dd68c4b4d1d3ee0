package main

// scenarios are what is compared; the first side of each is Keyline's.
func scenarios() []scenario {
	ours := func(how string) side { return side{peer: "keyline", version: "this tree", how: how} }
	with := func(s side, run runner) side { s.run = run; return s }
	river := func(how string) side {
		return side{peer: "river", version: version("github.com/riverqueue/river"), how: how}
	}
	return []scenario{
		{name: "drain-1", unit: "events/s", goals: map[string]float64{"river tuned": 3}, sides: []side{
			with(ours("default"), keylineDrain(1)), with(river(tuned), riverDrain(1, tuned)), with(river(byDefault), riverDrain(1, byDefault))}},
		{name: "drain-4", unit: "events/s to 4 consumers", goals: map[string]float64{"river tuned": 10}, sides: []side{
			with(ours("default"), keylineDrain(4)), with(river(tuned), riverDrain(4, tuned))}},
		// Nobody works on what is appended.
		{name: "append", unit: "tx/s", goals: map[string]float64{"keyline no wake": 0.9, "keyline NOTIFY always": 4, "river default": 1}, sides: []side{
			with(ours(adaptive), keylineAppend(adaptive, false)), with(ours(noWake), keylineAppend(noWake, false)),
			with(ours(always), keylineAppend(always, false)), with(river(byDefault), riverAppend(byDefault, false))}},
		// A worker does, on the same cores: Keyline's and River's tuned one keep up, River's default one does not.
		{name: "append-busy", unit: "tx/s", goals: map[string]float64{"keyline no wake": 0.9, "keyline NOTIFY always": 4, "river tuned": 1}, sides: []side{
			with(ours(adaptive), keylineAppend(adaptive, true)), with(ours(noWake), keylineAppend(noWake, true)),
			with(ours(always), keylineAppend(always, true)), with(river(tuned), riverAppend(tuned, true)), with(river(byDefault), riverAppend(byDefault, true))}},
		{name: "latency", unit: "ms, median", lower: true, goals: map[string]float64{"river tuned": 1}, sides: []side{
			with(ours("default"), keylineLatency), with(river(tuned), riverLatency(tuned)), with(river(byDefault), riverLatency(byDefault))}},
	}
}
