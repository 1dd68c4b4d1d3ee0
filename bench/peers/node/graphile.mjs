// graphile-worker in a database of its own. A job's queue is its record's where
// order counts: jobs of one queue run one at a time, by the time they were added.

import { Logger, makeWorkerUtils, run } from 'graphile-worker'

const quiet = new Logger(() => (level, message) => { if (level === 'error') console.error(message) })

export async function graphile (pool, own, handle) {
  const preset = {
    worker: {
      concurrentJobs: own.concurrent_jobs,
      pollInterval: own.poll_interval_ms,
      ...(own.local_queue_size > 0 && { localQueue: { size: own.local_queue_size } }),
      ...(own.complete_job_batch_delay_ms >= 0 && { completeJobBatchDelay: own.complete_job_batch_delay_ms })
    }
  }
  const utils = await makeWorkerUtils({ pgPool: pool, logger: quiet })
  await utils.migrate()
  let runner
  return {
    batch: 5000,
    async start () {
      runner = await run({
        pgPool: pool,
        logger: quiet,
        noHandleSignals: true,
        preset,
        taskList: { thing: payload => handle(payload.n) }
      })
    },
    async stop () {
      await runner?.stop()
      await utils.release()
    },
    // jobs are [number, record]; record is null where order does not count.
    async insert (jobs) {
      await utils.addJobs(jobs.map(([n, record]) =>
        ({ identifier: 'thing', payload: data(n), queueName: record === null ? undefined : 'thing:' + record })))
    },
    async append (client, n) {
      await client.query('select graphile_worker.add_job($1, $2::json)', ['thing', data(n)])
    },
    keeps: false,
    async stored () {
      return Number((await pool.query('select count(*) from graphile_worker._private_jobs')).rows[0].count)
    },
    async left () {
      return (await pool.query('select 1 from graphile_worker._private_jobs limit 1')).rowCount > 0
    }
  }
}

const data = n => ({ n, by: 'u1', note: 'the quick brown fox' })
