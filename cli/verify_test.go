package cli

import (
	"encoding/json"
	"testing"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/internal/testdb"
)

// Promise: whatever check finds something, `keyline verify` says so by its exit code, in words and in JSON.
func TestVerifyFailsForEachCheck(t *testing.T) {
	t.Parallel()
	for check, corrupt := range map[string]string{
		"":                          "select",
		"seqs_gapless":              "alter table keyline.events disable trigger all; delete from keyline.events where seq = 2",
		"cursor_at_most_head":       "update keyline.mailboxes set cursor = 9",
		"no_work_without_mailbox":   "delete from keyline.mailboxes",
		"no_claim_of_a_lost_worker": "update keyline.mailboxes set claimed_by = 77, claimed_at = now()",
		"no_checkpoint_above_head":  "insert into keyline.checkpoints (record_id, consumer_id, seq, state, attempt) values (1, 1, 9, 'ready', 0)",
		"no_impossible_states":      "update keyline.mailboxes set crashes = -1",
		"no_orphans":                "insert into keyline.mailboxes (record_id, due_at) values (99, now())",
	} {
		t.Run(check, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			for range 2 {
				oneObject(t, exitOK, "append", "order:1", "order.placed", "null", "--database-url", db.URL, "--json")
			}
			if _, err := db.Pool().Exec(t.Context(), corrupt); err != nil {
				t.Fatal(err)
			}
			want := exitFailure
			if check == "" {
				want = exitOK
			}
			code, out, talk := runApart(nil, "verify", "--database-url", db.URL, "--json")
			var v keyline.Verification
			if err := json.Unmarshal([]byte(out), &v); err != nil || code != want || v.OK != (want == exitOK) || len(v.Checks) != 7 {
				t.Fatalf("exit code %d, %v: %s%s", code, err, out, talk)
			}
			for _, c := range v.Checks {
				if c.Name == check && c.Violations == 0 || (c.Violations > 0) != (len(c.Sample) > 0) {
					t.Errorf("%s: %+v", check, c)
				}
			}
			if code, out, _ := runApart(nil, "verify", "--database-url", db.URL); code != want || out == "" {
				t.Errorf("in words: exit code %d: %s", code, out)
			}
		})
	}
}
