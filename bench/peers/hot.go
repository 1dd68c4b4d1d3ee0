package main

import (
	"context"
	"fmt"
	"strconv"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/keylinehq/keyline"
)

// hotShape is how many records there are and how many events of each.
type hotShape func(settings) (records, events int)

func hotMany(s settings) (records, events int) { return s.HotRecords, s.HotEvents }

func hotOne(s settings) (records, events int) { return 1, s.HotSingle }

// hotNumber is the job of the ith insert: the records take turns, and each
// one's events are in order. A job's number is its record's times the events of
// each plus its event's.
func hotNumber(i, records, events int) int64 {
	return int64(i%records*events + i/records)
}

// hotAtMost scales hot runs down.
func hotAtMost(events, single int) func(settings) settings {
	return func(s settings) settings {
		s.HotEvents, s.HotSingle = min(s.HotEvents, events), min(s.HotSingle, single)
		return s
	}
}

// atMost scales drains down.
func atMost(records int) func(settings) settings {
	return func(s settings) settings { s.Records = min(s.Records, records); return s }
}

// keylineHot drains records that each have many events, with one consumer.
// Window 0 is the default.
func keylineHot(shape hotShape, window int) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		records, events := shape(b.settings)
		pool, client, drop, err := b.keylineOn(ctx)
		if err != nil {
			return outcome{}, err
		}
		defer drop()
		books := newOrderedBooks(records, events)
		newWorker := func() (*keyline.Worker, error) {
			return keyline.NewWorker(pool, keyline.Config{TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()},
				keyline.Consumer{Name: "c0", Types: []string{"*"}, Effect: keyline.None(), Window: window,
					Handle: func(_ context.Context, d *keyline.Delivery) error {
						record, _ := strconv.Atoi(d.Key.Record[len("thing:"):])
						books.handledInOrder(record, int(d.Seq)-1)
						return nil
					}})
		}
		w, err := newWorker()
		if err != nil {
			return outcome{}, err
		}
		if err := register(ctx, pool, w); err != nil {
			return outcome{}, err
		}
		for from := 0; from < records*events; from += insertBatch {
			var batch []keyline.NewEvent
			for i := from; i < min(from+insertBatch, records*events); i++ {
				batch = append(batch, keyline.NewEvent{Key: keyline.Key{Record: fmt.Sprintf("thing:%d", i%records)}, Type: "thing.done", Payload: payload})
			}
			if _, err := client.AppendMany(ctx, pool, batch); err != nil {
				return outcome{}, err
			}
		}
		if _, err := pool.Exec(ctx, "vacuum analyze"); err != nil {
			return outcome{}, err
		}
		if w, err = newWorker(); err != nil {
			return outcome{}, err
		}
		return b.drain(ctx, pool, books, records*events, keylineLeft, func() (func() error, error) { return started(ctx, w) })
	}
}
