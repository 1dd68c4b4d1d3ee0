-- A chunk of rows without a key, by id. Rows that somebody has locked are passed over, and met by a later round.
with chunk as (
  select {{.ID}} as id from {{.Table}} as {{.Alias}}
  where {{.Alias}}.{{.KeyColumn}} is null and ($2::text is null or {{.Alias}}.{{.ID}} > $2::text::{{.IDType}}){{if not .AllRows}} and {{.PendingWhere}}{{end}}
  order by {{.Alias}}.{{.ID}} limit $1 for update skip locked
), filled as (
  update {{.Table}} as {{.Alias}} set {{.KeyColumn}} = {{.Fn "key"}}({{.Alias}})
  from chunk where {{.Alias}}.{{.ID}} = chunk.id
)
select count(*), (array_agg(id::text order by id desc))[1] from chunk;
