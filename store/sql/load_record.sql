-- The columns of load_records, and whether a load is to read more.
select record_id, token, crashes, unclean, tenant, record_key, head, base, epoch,
  seq, id, type, version, payload, headers, occurred_at, created_at, rare
from {{.schema}}.load_record($1, $2, $3)
