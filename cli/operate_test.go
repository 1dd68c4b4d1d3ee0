package cli

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/keylinehq/keyline"
)

// poisonedOwn are the consumers of a program that fails: "parks" on every
// order.poison and, until there is a file "mended", on every order.late; "waits"
// on every order.slow, in a long backoff.
func poisonedOwn() []keyline.Consumer {
	return []keyline.Consumer{
		{
			Name: "parks", Types: []string{"order.*"}, Effect: keyline.None(), Retry: keyline.RetryPolicy{Delays: []time.Duration{}}, OnDead: keyline.Park,
			Handle: func(_ context.Context, d *keyline.Delivery) error {
				_, err := os.Stat("mended")
				if d.Type == "order.poison" || d.Type == "order.late" && err != nil {
					return errors.New("no good")
				}
				return nil
			},
		},
		{
			Name: "waits", Types: []string{"order.slow"}, Effect: keyline.None(), Retry: keyline.RetryPolicy{Delays: []time.Duration{time.Hour}},
			Handle: func(context.Context, *keyline.Delivery) error { return errors.New("not now") },
		},
	}
}
