package crm

import (
	"context"
	"fmt"

	"github.com/keylinehq/keyline"
)

// notification tells owners what happens to their activities.
type notification struct{ provider Provider }

func (n notification) notify(ctx context.Context, d *keyline.Delivery, s Snapshot) error {
	// The one who did it knows.
	if s.Owner == nil || *s.Owner == s.UpdatedBy {
		return nil
	}
	err := n.provider.Send(ctx, Message{Key: d.IdempotencyKey, To: *s.Owner, Text: s.Subject + ": " + summary(d.Type, s)})
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}
