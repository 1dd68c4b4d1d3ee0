package recorder

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Compared runs the check's statement and returns how many pairs of rows were compared in vain.
func Compared(ctx context.Context, pool *pgxpool.Pool) (pairs float64, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, byHash); err != nil {
			return err
		}
		var text []byte
		if err := tx.QueryRow(ctx, "explain (analyze, timing off, format json) "+checkSQL).Scan(&text); err != nil {
			return err
		}
		var plan any
		if err := json.Unmarshal(text, &plan); err != nil {
			return err
		}
		pairs = vain(plan)
		return nil
	})
	return pairs, err
}

func vain(plan any) (n float64) {
	switch p := plan.(type) {
	case []any:
		for _, part := range p {
			n += vain(part)
		}
	case map[string]any:
		removed, _ := p["Rows Removed by Join Filter"].(float64)
		loops, _ := p["Actual Loops"].(float64)
		n = removed * loops
		for _, part := range p {
			n += vain(part)
		}
	}
	return n
}
