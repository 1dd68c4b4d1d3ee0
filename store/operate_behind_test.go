package store

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// A page of what is behind costs what is behind, not what there is.
func TestBehindReadsOnlyWhatItIsAbout(t *testing.T) {
	r := newRig(t)
	// Two consumers, one with a row on every record, as transactional ones have.
	c := r.register(definition("c"), definition("d"))
	r.sweepAll()
	if err := r.BareSeed(t.Context(), "r", planRecords, 1); err != nil {
		t.Fatal(err)
	}
	const due, parked, page = 300, 50, 100
	r.exec("delete from keyline.mailboxes where record_id not in (select record_id from keyline.mailboxes order by record_id desc limit $1)", due)
	r.exec("update keyline.records r set cursor = head where not exists (select from keyline.mailboxes m where m.record_id = r.id)")
	r.exec(`insert into keyline.checkpoints (record_id, consumer_id, seq, state) select id, $1, cursor, 'ready' from keyline.records`, c)
	r.exec(`update keyline.checkpoints k set seq = 0, state = 'parked' where consumer_id = $1
		and record_id in (select id from keyline.records order by id limit $2)`, c, parked)
	for _, statistics := range []string{"of empty tables", "of full tables"} {
		t.Run(statistics, func(t *testing.T) {
			r := r.sub(t)
			if statistics == "of full tables" {
				r.exec("analyze")
			}
			tx := r.begin()
			defer r.rollbackTx(tx)
			r.frugal(tx, "operate_behind", 2*(due+parked), c, int64(0), behindChunk, nil)
			ids := pageOf(r, tx, c, page)
			r.frugal(tx, "operate_why_records", page, ids)
			r.frugal(tx, "operate_why_consumers", 2*page, ids, c)
		})
	}
	// All of it, in pages, each once and in order, and nothing else.
	o := &Operate{r.Store}
	var last int64
	n := 0
	for after, more := int64(0), true; more; {
		_, list, next, err := o.Behind(t.Context(), "c", nil, after, 70)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			if v.Record <= last {
				t.Fatalf("record %d after %d", v.Record, last)
			}
			last = v.Record
			n++
		}
		after, more = next, next != 0
	}
	if n != due+parked {
		t.Errorf("%d records, want %d", n, due+parked)
	}
	// Paused, all of its rows are looked at, in bounded pages: one can be short and not the last.
	r.exec("update keyline.consumers set status = 'paused' where id = $1", c)
	r.exec("update keyline.records set cursor = head")
	r.exec("update keyline.checkpoints k set state = 'ready', seq = r.cursor from keyline.records r where r.id = k.record_id and k.consumer_id = $1", c)
	r.exec("update keyline.checkpoints set seq = 0 where consumer_id = $1 and record_id = (select max(id) from keyline.records)", c)
	r.exec("truncate keyline.mailboxes")
	n = 0
	pages := 0
	for after, more := int64(0), true; more; pages++ {
		_, list, next, err := o.Behind(t.Context(), "c", nil, after, 70)
		if err != nil {
			t.Fatal(err)
		}
		n, after, more = n+len(list), next, next != 0
	}
	if n != 1 || pages != planRecords/behindMost+1 {
		t.Errorf("%d records in %d pages", n, pages)
	}
}

func pageOf(r *rig, tx pgx.Tx, consumer int32, limit int) []int64 {
	r.Helper()
	ids, _, err := (&Operate{r.Store}).behindIDs(r.Context(), tx, consumer, nil, 0, limit)
	if err != nil || len(ids) != limit {
		r.Fatalf("%d records: %v", len(ids), err)
	}
	return ids
}
