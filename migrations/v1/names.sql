-- Lock keys and the channel derive from the schema's name, so that two
-- installations in one database do not meet.
create function {{.schema}}.arm_key() returns bigint language sql immutable parallel safe
return pg_catalog.hashtextextended('keyline arm {{.schema}}', 0);

-- Workers alone know this one: whoever holds it acts on wakes for all idle workers.
create function {{.schema}}.seat_key() returns bigint language sql immutable parallel safe
return pg_catalog.hashtextextended('keyline seat {{.schema}}', 0);

create function {{.schema}}.barrier_key() returns bigint language sql immutable parallel safe
return pg_catalog.hashtextextended('keyline barrier {{.schema}}', 0);

create function {{.schema}}.channel() returns text language sql immutable parallel safe
return '{{.schema}}_wake';

-- Whether a consumer's globs and versions concern an event; "*" stands for any run of characters.
create function {{.schema}}.concerns(types text[], versions integer[], contract_only boolean, event_type text, event_version integer)
returns boolean language sql immutable parallel safe
return not contract_only
  and exists (
    select from unnest(types) as g(glob)
    where event_type like replace(replace(replace(replace(g.glob, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%'))
  and (versions is null or event_version = any (versions));
