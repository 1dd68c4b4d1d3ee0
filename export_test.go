package keyline

// OutcomeNames are what a process span's outcome can be.
func OutcomeNames() []string { return outcomeNames }
