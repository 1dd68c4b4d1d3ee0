package main

// scenarios are all of them, in the order in which they are played.
func scenarios() []scenario {
	var all []scenario
	for _, group := range [][]scenario{commitOrder, settling, cuts, leases, poison, backoff, slots, retention, stops, handBacks, frozen, late, loops, registry, operators, acts, clocks, environment, around, copies} {
		all = append(all, group...)
	}
	return all
}
