package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/keylinehq/keyline"
)

// logConsumerName is the consumer of a worker that was given none.
const logConsumerName = "log"

// logged is a line of the log consumer.
type logged struct {
	Consumer    string            `json:"consumer"`
	Tenant      string            `json:"tenant"`
	Record      string            `json:"record"`
	Seq         int64             `json:"seq"`
	ID          uuid.UUID         `json:"id"`
	Type        string            `json:"type"`
	Version     int               `json:"version"`
	Payload     json.RawMessage   `json:"payload"`
	Headers     map[string]string `json:"headers"`
	OccurredAt  time.Time         `json:"occurred_at"`
	CreatedAt   time.Time         `json:"created_at"`
	Attempt     int               `json:"attempt"`
	Redelivered bool              `json:"redelivered"`
	Mode        keyline.Mode      `json:"mode"`
}

// logConsumer writes every event to w, one JSON object per line.
func logConsumer(w io.Writer) keyline.Consumer {
	var mu sync.Mutex
	return keyline.Consumer{
		Name: logConsumerName, Types: []string{"*"},
		Effect: keyline.External("a line written twice has the same id, and says redelivered"),
		Handle: func(_ context.Context, d *keyline.Delivery) error {
			var line bytes.Buffer
			e := json.NewEncoder(&line)
			e.SetEscapeHTML(false) // a payload is written as it was appended
			err := e.Encode(logged{d.Consumer, d.Tenant, d.Record, d.Seq, d.ID, d.Type, d.Version, d.Payload, d.Headers,
				d.OccurredAt, d.CreatedAt, d.Attempt, d.Redelivered, d.Mode})
			if err != nil {
				return keyline.Permanent(fmt.Errorf("write event: %w", err))
			}
			mu.Lock()
			defer mu.Unlock()
			if _, err := w.Write(line.Bytes()); err != nil {
				return fmt.Errorf("write event: %w", err)
			}
			return nil
		},
	}
}
