// pg-boss in a database of its own, with one queue.

import PgBoss from 'pg-boss'

export async function pgboss (pool, own, handle) {
  const boss = new PgBoss({ db: { executeSql: (text, values) => pool.query(text, values) }, schedule: false })
  boss.on('error', err => console.error(err.message))
  await boss.start()
  await boss.createQueue('things')
  return {
    batch: 5000,
    async start () {
      const options = { batchSize: own.batch_size, pollingIntervalSeconds: own.polling_interval_s }
      for (let i = 0; i < own.workers; i++) {
        const id = await boss.work('things', options, async jobs => {
          // Where there was a full batch there is more: do not wait for the next poll.
          if (own.notify_after_full_batch && jobs.length === own.batch_size) boss.notifyWorker(id)
          for (const job of jobs) await handle(job.data.n)
        })
      }
    },
    async stop () { await boss.stop({ graceful: true, wait: true, close: false }) },
    async insert (jobs) { await boss.insert(jobs.map(([n]) => ({ name: 'things', data: data(n) }))) },
    async append (client, n) {
      await boss.send('things', data(n), { db: { executeSql: (text, values) => client.query(text, values) } })
    },
    keeps: true,
    async stored () {
      return Number((await pool.query("select count(*) from pgboss.job where name = 'things'")).rows[0].count)
    },
    async left () {
      return (await pool.query("select 1 from pgboss.job where name = 'things' and state <> 'completed' limit 1")).rowCount > 0
    }
  }
}

const data = n => ({ n, by: 'u1', note: 'the quick brown fox' })
