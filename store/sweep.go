package store

// What a registry change leaves to be done on its records, kept in
// consumers.sweep until it is done.
const (
	sweepNothing  = ""
	sweepWake     = "wake"
	sweepBackfill = "backfill"
	sweepClear    = "clear"
)
