select {{.schema}}.hand_back_orphans($1, $2, $3, $4)
