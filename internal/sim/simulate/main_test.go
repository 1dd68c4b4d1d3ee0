package main

import (
	"errors"
	"reflect"
	"testing"

	"github.com/keylinehq/keyline/internal/sim"
)

// TestACampaignIsItsSeeds: how many run at once, and in what order, changes nothing.
func TestACampaignIsItsSeeds(t *testing.T) {
	var reports []*report
	for _, parallel := range []int{1, 3} {
		c := newCampaign(7, 60)
		c.run(t.Context(), parallel)
		reports = append(reports, c.report())
	}
	if reports[0].Runs != 60 || reports[0].Steps == 0 || reports[0].Violations != 0 || !reflect.DeepEqual(reports[0], reports[1]) {
		t.Errorf("one after the other %+v, beside each other %+v", reports[0], reports[1])
	}
}

func TestAReportFailsWhereSomethingBrokeOrNeverCameUp(t *testing.T) {
	var all sim.Stats
	for _, f := range sim.Faults() {
		all.Faults[f] = 1
	}
	rep := newReport()
	rep.add(3, all, nil)
	if code := finish(rep, 1); code != 0 {
		t.Errorf("nothing is wrong, and the code is %d", code)
	}
	if code := finish(rep, 2); code != 1 {
		t.Errorf("it was cut short, and the code is %d", code)
	}
	all.Faults[sim.Zombie] = 0
	rep = newReport()
	rep.add(3, all, nil)
	if code := finish(rep, 1); code != 1 {
		t.Errorf("there was no zombie, and the code is %d", code)
	}
	rep.add(2, sim.Stats{}, errors.New("broken"))
	rep.add(5, sim.Stats{}, errors.New("broken"))
	if rep.violated() != 1 || rep.Violations != 2 || *rep.FirstSeed != 2 {
		t.Errorf("two are broken: %+v", rep)
	}
}
