package demo

import _ "embed" // the statements

// What the show reads. The schema has its default name.
var (
	//go:embed sql/consumers_ready.sql
	sqlConsumersReady string
	//go:embed sql/settled.sql
	sqlSettled string
	//go:embed sql/holders.sql
	sqlHolders string
	//go:embed sql/held.sql
	sqlHeld string
	//go:embed sql/sessions.sql
	sqlSessions string
	//go:embed sql/marks.sql
	sqlMarks string
	//go:embed sql/troubles.sql
	sqlTroubles string
	//go:embed sql/totals.sql
	sqlTotals string
	//go:embed sql/incarnations.sql
	sqlIncarnations string
	//go:embed sql/terminate.sql
	sqlTerminate string
	//go:embed sql/facts.sql
	sqlFacts string
)
