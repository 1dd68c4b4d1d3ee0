select m.cluster_id, d.oid from {{.schema}}.meta m, pg_database d where d.datname = current_database()
