select d.seq, d.status, d.attempt, d.granted, d.crashes, d.due_at
from {{.schema}}.dead_letters d where d.id = $1 for update
