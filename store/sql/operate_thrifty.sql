-- For the rest of a transaction: plans that go by index and by one row at a time, as keep_health has them. What is read then is as much
-- as its limits say, whatever the statistics are of.
select set_config(name, 'off', true)
from unnest(array['enable_seqscan', 'enable_bitmapscan', 'enable_hashjoin', 'enable_mergejoin', 'jit']) as name
