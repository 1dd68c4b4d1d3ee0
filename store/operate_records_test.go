package store

import (
	"strings"
	"testing"

	"github.com/keylinehq/keyline/keylinetype"
)

func TestBeyondIsTheLeastTextAboveAPrefix(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "a": "b", "a:": "a;", "aé": "aê", "a\ud7ff": "a\ue000", "a\U0010ffff": "b", "\U0010ffff": ""} {
		got := beyond(in)
		if got != want {
			t.Errorf("beyond(%q) = %q, want %q", in, got, want)
		}
		if got != "" && (got <= in+strings.Repeat("\U0010ffff", 100) || strings.HasPrefix(got, in)) {
			t.Errorf("%q is not beyond what begins with %q", got, in)
		}
	}
}

// Lists read their page, however much there is.
func TestListsReadOnlyTheirPage(t *testing.T) {
	r := newRig(t)
	r.register(definition("c"), definition("d"))
	r.sweepAll()
	if err := r.BareSeed(t.Context(), "r", planRecords, 1); err != nil {
		t.Fatal(err)
	}
	// One long record, of which the first events have been pruned.
	const events, pruned, page = 20_000, 5_000, 100
	long := r.append("long", "t")
	r.exec(`insert into keyline.events (record_id, seq, id, type, version, payload, headers, occurred_at, created_at)
		select $1, s, gen_random_uuid(), 't', 1, 'null', '{}', now(), now() from generate_series(2, $2::bigint) s`, long, events)
	r.exec("update keyline.records set head = $2, cursor = $2 where id = $1", long, events)
	tx := r.begin()
	r.in(tx, "set local session_replication_role = replica") // past the guard of the append-only table
	r.in(tx, "delete from keyline.events where record_id = $1 and seq <= $2", long, pruned)
	r.commit(tx)
	for _, statistics := range []string{"of empty tables", "of full tables"} {
		t.Run(statistics, func(t *testing.T) {
			r := r.sub(t)
			if statistics == "of full tables" {
				r.exec("analyze")
			}
			tx := r.begin()
			defer r.rollbackTx(tx)
			r.frugal(tx, "operate_records", page, "", "", page, nil, "", nil)
			r.frugal(tx, "operate_records", page, "", "", page, "", "lo", "lp")
			r.frugal(tx, "operate_records", page, "", "r", page, "", "r", nil)
			// Each event is looked at by itself and with its deliveries, twice, to each consumer.
			r.frugal(tx, "show_events", 8*page, long, int64(0), page)
			r.frugal(tx, "show_events", 8*page, long, int64(events-page), page)
		})
	}
	o := &Operate{r.Store}
	list, err := o.Events(t.Context(), keylinetype.Key{Record: "long"}, 0, page)
	if err != nil || len(list) != page || list[0].Seq != pruned+1 || list[page-1].Seq != pruned+page {
		t.Errorf("%d events from %+v: %v", len(list), list[:1], err)
	}
	if list, err = o.Events(t.Context(), keylinetype.Key{Record: "long"}, events, page); err != nil || len(list) != 0 {
		t.Errorf("behind the end: %d events, %v", len(list), err)
	}
	// Every record once, in pages, in the order of keys.
	last, n := keylinetype.Key{}, 0
	for after := (*keylinetype.Key)(nil); ; {
		list, err := o.Records(t.Context(), nil, "", after, 9999)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			break
		}
		for _, v := range list {
			if v.Record <= last.Record {
				t.Fatalf("%q after %q", v.Record, last.Record)
			}
			last = keylinetype.Key{Record: v.Record}
			n++
		}
		after = &last
	}
	if n != planRecords+1 {
		t.Errorf("%d records", n)
	}
}
