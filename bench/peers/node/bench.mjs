// Runs one side of one scenario once: what to run comes as a line of JSON on
// stdin, the outcome goes as one to stdout. Before the side starts to work on
// what it was given, "begin" goes out, and an answer is waited for: the time at
// which costs are counted from.

import { createInterface } from 'node:readline'
import pg from 'pg'
import { Books, Stopwatch, clients, openLoop } from './books.mjs'
import { graphile } from './graphile.mjs'
import { pgboss } from './pgboss.mjs'

const peers = { 'graphile-worker': graphile, 'pg-boss': pgboss }
const seconds = spec => spec.duration_ns / 1e9

// fill inserts jobs in batches; each may be a transaction of its own.
async function fill (peer, pool, jobs, batch) {
  for (let from = 0; from < jobs.length; from += batch) await peer.insert(jobs.slice(from, from + batch))
  await pool.query('vacuum analyze')
}

async function drain (peer, pool, books, events) {
  console.log('begin')
  await lines.next()
  const cpu = process.cpuUsage()
  const begun = performance.now()
  await peer.start()
  try {
    const took = await books.drained(begun, peer.left)
    await peer.stop()
    const { user, system } = process.cpuUsage(cpu)
    return { ...books.outcome(events / took), cpu_us: user + system }
  } catch (err) {
    return { ...books.outcome(0), error: err.message }
  }
}

const scenarios = {
  // One job for each consumer.
  async drain (make, pool, spec) {
    const jobs = spec.records * spec.consumers
    const books = new Books(jobs, 1)
    const peer = await make(n => books.handled(n))
    await fill(peer, pool, Array.from({ length: jobs }, (_, n) => [n, null]), peer.batch)
    return await drain(peer, pool, books, spec.records)
  },

  // The records take turns. No two events of a record are in one transaction.
  async hot (make, pool, spec) {
    const { records, events } = spec
    const books = new Books(records, events)
    const peer = await make(n => books.handledInOrder(n))
    const jobs = Array.from({ length: records * events }, (_, i) => [i % records * events + Math.floor(i / records), i % records])
    await fill(peer, pool, jobs, Math.min(records, peer.batch))
    return await drain(peer, pool, books, records * events)
  },

  async append (make, pool, spec) {
    const peer = await make(() => {})
    if (spec.beside) await peer.start()
    const [committed, value] = await clients(spec.clients, seconds(spec), async (c, i) => {
      const client = await pool.connect()
      try {
        await client.query('begin')
        await peer.append(client, i)
        await client.query('commit')
      } finally {
        client.release()
      }
    })
    // Where jobs that are done are gone, nothing can be counted beside a worker.
    const stored = spec.beside && !peer.keeps ? committed : await peer.stored()
    return { value, lost: Math.max(committed - stored, 0), duplicates: Math.max(stored - committed, 0), order_violations: 0 }
  },

  async latency (make, pool, spec) {
    const watch = new Stopwatch(spec.rate_per_s)
    const peer = await make(n => watch.started(n))
    await peer.start()
    await openLoop(spec.rate_per_s, seconds(spec), async i => {
      await peer.append(pool, i)
      watch.committed(i)
    })
    await watch.settled(spec.arrival_ns / 1e6, peer.left)
    return watch.outcome()
  }
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const spec = JSON.parse((await lines.next()).value)
const pool = new pg.Pool({ ...spec.database, max: spec.max_conns })
pool.on('error', err => console.error(err.message))
pool.on('connect', client => client.on('error', err => console.error(err.message)))
const make = handle => peers[spec.peer](pool, spec.own, handle)
console.log(JSON.stringify(await scenarios[spec.scenario](make, pool, spec)))
process.exit(0) // with whatever is at work still, as the database goes next
