-- How many workers have ever joined.
select count(*) from keyline.workers
