select count(*) > 0 and bool_and(status = 'active' and sweep is null) from keyline.consumers
