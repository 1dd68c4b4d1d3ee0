package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// watermillTopic is the one topic: its order is that of the topic, for each
// consumer group.
const watermillTopic = "things"

// watermillLeft counts the consumer groups that have not acknowledged the last message.
const watermillLeft = `select count(*) from watermill_offsets_things o,
	(select transaction_id, "offset" from watermill_things order by transaction_id desc, "offset" desc limit 1) l
	where (o.last_processed_transaction_id, o.offset_acked) < (l.transaction_id, l."offset")`

// watermillWay is how watermill-sql is set.
type watermillWay struct {
	batch      int           // 0: as it comes, 100
	poll       time.Duration // 0: as it comes, 1 s
	noDeadline bool          // to acknowledge; as it comes, 30 s
}

func (w watermillWay) given() own {
	g := own{"subscribe_batch_size": 100, "poll_interval": "1s", "ack_deadline": "30s", "schema": "DefaultPostgreSQLSchema"}
	if w.batch > 0 {
		g["subscribe_batch_size"] = w.batch
	}
	if w.poll > 0 {
		g["poll_interval"] = w.poll.String()
	}
	if w.noDeadline {
		g["ack_deadline"] = "none"
	}
	return g
}

func (w watermillWay) schema() watermillsql.DefaultPostgreSQLSchema {
	return watermillsql.DefaultPostgreSQLSchema{SubscribeBatchSize: w.batch}
}

// watermillRun is watermill-sql in a database of its own.
type watermillRun struct {
	way  watermillWay
	pool *pgxpool.Pool
	drop func()
}

func (b *bench) watermillOn(ctx context.Context, way watermillWay) (*watermillRun, error) {
	pool, drop, err := b.fresh(ctx)
	if err != nil {
		return nil, err
	}
	r := &watermillRun{way: way, pool: pool, drop: drop}
	s, err := r.subscriber(0)
	if err == nil {
		err = s.SubscribeInitialize(watermillTopic)
	}
	if err != nil {
		drop()
		return nil, err
	}
	return r, nil
}

func (r *watermillRun) subscriber(group int) (*watermillsql.Subscriber, error) {
	cfg := watermillsql.SubscriberConfig{ConsumerGroup: "c" + strconv.Itoa(group), PollInterval: r.way.poll,
		SchemaAdapter: r.way.schema(), OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{}}
	if r.way.noDeadline {
		cfg.AckDeadline = new(time.Duration)
	}
	return watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(r.pool), cfg, watermill.NopLogger{})
}

// publish inserts messages in the caller's transaction, or in one of its own
// where db is the pool.
func (r *watermillRun) publish(db watermillsql.ContextExecutor, messages ...*message.Message) error {
	p, err := watermillsql.NewPublisher(db, watermillsql.PublisherConfig{SchemaAdapter: r.way.schema()}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	return p.Publish(watermillTopic, messages...)
}

// fill publishes messages in batches, as numbered.
func (r *watermillRun) fill(ctx context.Context, messages int, numbered func(i int) int64) error {
	for from := 0; from < messages; from += insertBatch {
		var batch []*message.Message
		for i := from; i < min(from+insertBatch, messages); i++ {
			batch = append(batch, watermillMessage(numbered(i)))
		}
		if err := r.publish(watermillsql.BeginnerFromPgx(r.pool), batch...); err != nil {
			return err
		}
	}
	_, err := r.pool.Exec(ctx, "vacuum analyze")
	return err
}

func watermillMessage(n int64) *message.Message {
	return message.NewMessage(watermill.NewUUID(), numbered(n))
}

// subscribe lets consumer groups read until what it returns is called.
func (r *watermillRun) subscribe(ctx context.Context, groups int, handle func(group int, n int64)) (stop func() error, err error) {
	var subscribers []*watermillsql.Subscriber
	var wg sync.WaitGroup
	stop = func() error {
		for _, s := range subscribers {
			_ = s.Close() // never fails
		}
		wg.Wait()
		return nil
	}
	for group := range groups {
		s, err := r.subscriber(group)
		if err != nil {
			_ = stop()
			return nil, err
		}
		subscribers = append(subscribers, s)
		messages, err := s.Subscribe(ctx, watermillTopic)
		if err != nil {
			_ = stop()
			return nil, fmt.Errorf("group %d: %w", group, err)
		}
		wg.Go(func() {
			for m := range messages {
				handle(group, numberOf(m.Payload))
				m.Ack()
			}
		})
	}
	return stop, nil
}

func watermillDrain(groups int, way watermillWay) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		r, err := b.watermillOn(ctx, way)
		if err != nil {
			return outcome{}, err
		}
		defer r.drop()
		if err := r.fill(ctx, b.Records, func(i int) int64 { return int64(i) }); err != nil {
			return outcome{}, err
		}
		books := newBooks(b.Records * groups)
		return b.drain(ctx, r.pool, books, b.Records, watermillLeft, func() (func() error, error) {
			return r.subscribe(ctx, groups, func(group int, n int64) { books.handled(int(n)*groups + group) })
		})
	}
}

func watermillHot(shape hotShape, way watermillWay) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		records, events := shape(b.settings)
		r, err := b.watermillOn(ctx, way)
		if err != nil {
			return outcome{}, err
		}
		defer r.drop()
		if err := r.fill(ctx, records*events, func(i int) int64 { return hotNumber(i, records, events) }); err != nil {
			return outcome{}, err
		}
		books := newOrderedBooks(records, events)
		return b.drain(ctx, r.pool, books, records*events, watermillLeft, func() (func() error, error) {
			return r.subscribe(ctx, 1, func(_ int, n int64) { books.handledInOrder(int(n)/events, int(n)%events) })
		})
	}
}

func watermillAppend(way watermillWay, beside bool) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		r, err := b.watermillOn(ctx, way)
		if err != nil {
			return outcome{}, err
		}
		defer r.drop()
		if beside {
			stop, err := r.subscribe(ctx, 1, func(int, int64) {})
			if err != nil {
				return outcome{}, err
			}
			defer func() { _ = stop() }()
		}
		return b.appending(ctx, r.pool, "select count(*) from watermill_things", func(ctx context.Context, _, i int) error {
			return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
				return r.publish(watermillsql.TxFromPgx(tx), watermillMessage(int64(i)))
			})
		})
	}
}

func watermillLatency(way watermillWay) runner {
	return func(ctx context.Context, b *bench) (outcome, error) {
		r, err := b.watermillOn(ctx, way)
		if err != nil {
			return outcome{}, err
		}
		defer r.drop()
		watch := newStopwatch(b.Rate)
		stop, err := r.subscribe(ctx, 1, func(_ int, n int64) { watch.started(n) })
		if err != nil {
			return outcome{}, err
		}
		err = openLoop(ctx, b.Rate, b.Duration, func(_ context.Context, i int64) error {
			err := r.publish(watermillsql.BeginnerFromPgx(r.pool), watermillMessage(i))
			watch.committed(i)
			return err
		})
		err = errors.Join(err, watch.settled(ctx, r.pool, watermillLeft))
		if stopErr := stop(); err == nil {
			err = stopErr
		}
		return watch.outcome(), err
	}
}
