-- PostgreSQL 15 has no uuidv7(): 48 bits of milliseconds over a random v4 uuid,
-- with the version's two differing bits set (RFC 9562, 5.7).
create function {{.schema}}.uuidv7() returns uuid language sql volatile parallel safe as $$
  select encode(
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6),
      52, 1), 53, 1), 'hex')::uuid
$$;
