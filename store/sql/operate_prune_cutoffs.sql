-- The times before which things go, by the database's clock.
select clock_timestamp() - make_interval(secs => $1::double precision), clock_timestamp() - make_interval(secs => $2::double precision)
