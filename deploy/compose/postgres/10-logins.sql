-- Logins with the rights of roles that `keyline migrate roles` fills in later.
create role keyline_worker nologin;
create role keyline_producer nologin;
create role keyline_operator nologin;
create role worker login password 'worker' in role keyline_worker;
create role app login password 'app' in role keyline_producer;
create role olga login password 'olga' in role keyline_operator;
