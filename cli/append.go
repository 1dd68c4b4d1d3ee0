package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/keylinehq/keyline"
)

// appendFlags are an event's optional parts.
type appendFlags struct {
	tenant, id, idempotencyKey, correlation, causation, occurredAt string
	version                                                        int
	expectedSeq                                                    int64
	headers                                                        map[string]string
}

// appended is the output of append.
type appended struct {
	Tenant    string    `json:"tenant"`
	Record    string    `json:"record"`
	Seq       int64     `json:"seq"`
	ID        uuid.UUID `json:"id"`
	Duplicate bool      `json:"duplicate"`
}

func (a *app) appendCommand() *cobra.Command {
	var f appendFlags
	cmd := &cobra.Command{
		Use:   "append KEY TYPE PAYLOAD|-",
		Short: "Append an event to a record's stream",
		Long: "Appends an event to a record's stream, in a transaction of its own. PAYLOAD is JSON; - reads it from\n" +
			"standard input. An empty KEY makes the event its own record.",
		Example: "  keyline append activity:42 activity.completed '{\"by\":\"u1\"}'\n  jq . event.json | keyline append activity:42 activity.noted -",
		Args:    arguments(cobra.ExactArgs(3)),
		RunE: func(cmd *cobra.Command, args []string) error {
			event, err := a.newEvent(cmd, &f, args)
			if err != nil {
				return err
			}
			client, err := keyline.NewClient(keyline.ClientConfig{Schema: a.global.schema})
			if err != nil {
				return err
			}
			conn, err := a.connect(cmd)
			if err != nil {
				return err
			}
			defer disconnect(cmd.Context(), conn)
			got, err := client.Append(cmd.Context(), conn, event)
			if err != nil {
				return err
			}
			if a.global.json {
				return a.printJSON(appended{got.Key.Tenant, got.Key.Record, got.Seq, got.ID, got.Duplicate})
			}
			note := ""
			if got.Duplicate {
				note = "  (was there already)"
			}
			return a.print("%s #%d  %s%s", line(got.Key.Record), got.Seq, got.ID, note)
		},
	}
	f.register(cmd)
	return cmd
}

func (f *appendFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.tenant, "tenant", "", "tenant that the record belongs to")
	fs.IntVar(&f.version, "event-version", 1, "version of the payload's schema")
	fs.StringVar(&f.id, "id", "", "the event's id, a UUID (default: a new one)")
	fs.StringVar(&f.idempotencyKey, "idempotency-key", "", "makes the append repeatable: the same key returns the first event")
	fs.StringVar(&f.correlation, "correlation-id", "", "kept in the headers")
	fs.StringVar(&f.causation, "causation-id", "", "kept in the headers")
	fs.StringVar(&f.occurredAt, "occurred-at", "", "when it happened, RFC 3339 (default: now, by the database)")
	fs.StringToStringVar(&f.headers, "header", nil, "name=value, kept with the event; may be repeated")
	fs.Int64Var(&f.expectedSeq, "expected-seq", 0, "refuse (exit code 4) unless this is the record's last seq; 0: it must be new")
}

func (a *app) newEvent(cmd *cobra.Command, f *appendFlags, args []string) (keyline.NewEvent, error) {
	e := keyline.NewEvent{
		Key: keyline.Key{Tenant: f.tenant, Record: args[0]}, Type: args[1], Version: f.version, IdempotencyKey: f.idempotencyKey,
		CorrelationID: f.correlation, CausationID: f.causation, Headers: f.headers,
	}
	if cmd.Flags().Changed("expected-seq") {
		e.ExpectedSeq = &f.expectedSeq
	}
	var err error
	if f.id != "" {
		if e.ID, err = uuid.Parse(f.id); err != nil {
			return e, usagef(cmd, "--id %q: %w", f.id, err)
		}
	}
	if f.occurredAt != "" {
		if e.OccurredAt, err = time.Parse(time.RFC3339Nano, f.occurredAt); err != nil {
			return e, usagef(cmd, "--occurred-at: %w", err)
		}
	}
	payload := []byte(args[2])
	if args[2] == "-" {
		if payload, err = io.ReadAll(io.LimitReader(a.stdin, maxPayloadRead)); err != nil {
			return e, fmt.Errorf("read payload: %w", err)
		}
	}
	if len(strings.TrimSpace(string(payload))) == 0 {
		return e, usagef(cmd, "the payload is empty; null is JSON, nothing is not")
	}
	e.Payload = json.RawMessage(payload)
	return e, nil
}

// maxPayloadRead bounds what is read from standard input; the client and the
// database have the real limit.
const maxPayloadRead = 64 << 20
