select moved, fenced, skipped, gone, looked, looked_heads, waiting
from {{.schema}}.flush($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27::text::jsonb, $28::text::jsonb)
