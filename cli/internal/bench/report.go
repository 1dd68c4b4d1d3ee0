package bench

// Verdict is what the handlers found wrong. A fast wrong answer is none.
type Verdict struct {
	OrderViolations int64 `json:"order_violations"`
	Lost            int64 `json:"lost"`
	Duplicates      int64 `json:"duplicates"`
}

// OK says whether everything was delivered, once and in order.
func (v Verdict) OK() bool { return v.OrderViolations+v.Lost+v.Duplicates == 0 }

func (v *Verdict) add(t *tally) {
	v.OrderViolations += t.violations.Load()
	v.Duplicates += t.duplicates.Load()
	v.Lost += t.lost()
}

// Report is what a scenario has measured.
type Report struct {
	Scenario string   `json:"scenario"`
	Settings Settings `json:"settings"`
	Cases    []Case   `json:"cases"`
	Goals    []Goal   `json:"goals"`
	Verdict
}

// Case is one of the situations that a scenario compares.
type Case struct {
	Name    string   `json:"name"`
	Figures []Figure `json:"figures"`
	// Series are what a plot is made of, where a scenario is about a course in time.
	Series []Point `json:"series,omitempty"`
}

// Figure is a median over the runs.
type Figure struct {
	Name  string    `json:"name"`
	Unit  string    `json:"unit"`
	Value float64   `json:"value"`
	Runs  []float64 `json:"runs"`
}

// Point is how far a turn was after a time, and the process's heap then.
type Point struct {
	Seconds   float64 `json:"seconds"`
	Delivered int64   `json:"delivered"`
	HeapBytes uint64  `json:"heap_bytes"`
}

// Goal is what a figure should be.
type Goal struct {
	Name string  `json:"goal"`
	Want float64 `json:"want"`
	// Most says that Want is an upper bound; otherwise it is a lower one.
	Most    bool    `json:"at_most"`
	Got     float64 `json:"got"`
	Reached bool    `json:"reached"`
}

func (r *Report) atLeast(name string, want, got float64) {
	r.Goals = append(r.Goals, Goal{Name: name, Want: want, Got: rounded(got, 3), Reached: got >= want})
}

func (r *Report) atMost(name string, want, got float64) {
	r.Goals = append(r.Goals, Goal{Name: name, Want: want, Most: true, Got: rounded(got, 3), Reached: got <= want})
}

// of returns the case of a name, which it makes where there is none.
func (r *Report) of(name string) *Case {
	for i := range r.Cases {
		if r.Cases[i].Name == name {
			return &r.Cases[i]
		}
	}
	r.Cases = append(r.Cases, Case{Name: name})
	return &r.Cases[len(r.Cases)-1]
}

// add notes a run's figure.
func (c *Case) add(name, unit string, value float64) {
	for i := range c.Figures {
		if f := &c.Figures[i]; f.Name == name {
			f.Runs = append(f.Runs, rounded(value, 4))
			f.Value = rounded(median(f.Runs), 4)
			return
		}
	}
	c.Figures = append(c.Figures, Figure{Name: name, Unit: unit, Value: rounded(value, 4), Runs: []float64{rounded(value, 4)}})
}

// value is a figure's median; 0 where there is none.
func (c *Case) value(name string) float64 {
	for _, f := range c.Figures {
		if f.Name == name {
			return f.Value
		}
	}
	return 0
}

// ratio is a figure of one case against the same of another: the median over
// the runs of what it was in each.
func (r *Report) ratio(figure, of, against string) float64 {
	return ratio(r.of(of).runs(figure), r.of(against).runs(figure))
}

// ratio is one figure against another, likewise.
func (c *Case) ratio(of, against string) float64 {
	return ratio(c.runs(of), c.runs(against))
}

func (c *Case) runs(figure string) []float64 {
	for _, f := range c.Figures {
		if f.Name == figure {
			return f.Runs
		}
	}
	return nil
}

func ratio(a, b []float64) float64 {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		ratios = append(ratios, a[i]/b[i])
	}
	if len(ratios) == 0 {
		return 0
	}
	return median(ratios)
}
