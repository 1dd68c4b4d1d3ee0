// What the handlers of one run keep, beside the queue under test: the same as
// the books of the other peers.

export const limit = 10 * 60 * 1000 // ms, for everything to be handled

export class Books {
  constructor (records, events) {
    this.events = events
    this.seen = new Uint16Array(records * events)
    this.inside = new Uint16Array(records)
    this.highest = new Int32Array(records)
    this.remaining = records * events
    this.disordered = 0
    this.done = new Promise(resolve => { this.end = resolve })
  }

  handled (job) {
    if (++this.seen[job] === 1 && --this.remaining === 0) this.end()
  }

  // Out of order is an event that is begun after a later one of its record, or
  // beside another. The handler gives way once, so that another could be seen.
  async handledInOrder (job) {
    const record = Math.floor(job / this.events)
    const event = job % this.events + 1
    if (++this.inside[record] > 1) this.disordered++
    else if (this.highest[record] > event && this.seen[job] === 0) this.disordered++
    else if (this.highest[record] < event) this.highest[record] = event
    await null
    this.handled(job)
    this.inside[record]--
  }

  // drained waits until every job was handled and left finds none in the
  // database, and says how long it took from begun, in seconds.
  async drained (begun, left) {
    const late = new Promise((resolve, reject) =>
      setTimeout(() => reject(new Error(`${this.remaining} jobs were not handled`)), limit).unref())
    await Promise.race([this.done, late])
    while (await left()) {
      if (performance.now() - begun > limit) throw new Error('everything was handled, but jobs are left in the database')
      await sleep(5)
    }
    return (performance.now() - begun) / 1000
  }

  outcome (value) {
    let lost = 0
    let duplicates = 0
    for (const n of this.seen) {
      if (n === 0) lost++
      else duplicates += n - 1
    }
    return { value, lost, duplicates, order_violations: this.disordered }
  }
}

// Stopwatch measures from commit to handler start, but for a rate's first second.
export class Stopwatch {
  constructor (rate) { this.warm = rate }

  commit = new Map()
  start = new Map()
  again = 0
  late = 0

  committed (id) { this.commit.set(id, performance.now()) }

  started (id) {
    if (this.start.has(id)) this.again++
    else this.start.set(id, performance.now())
  }

  // settled waits until everything that was committed has been started. What
  // has not by then, while left still finds work in the database, is late: how
  // long it has waited so far is what it counts with.
  async settled (most, left) {
    const begun = performance.now()
    while (this.start.size < this.commit.size && performance.now() - begun < most) await sleep(20)
    if (this.start.size === this.commit.size || !await left()) return
    for (const id of this.commit.keys()) {
      if (!this.start.has(id)) {
        this.start.set(id, performance.now())
        this.late++
      }
    }
  }

  outcome () {
    const ms = []
    let lost = 0
    for (const [id, at] of this.commit) {
      // A handler may start before the appender has heard of its own commit.
      if (!this.start.has(id)) lost++
      else if (id >= this.warm) ms.push(Math.max(this.start.get(id) - at, 0))
    }
    ms.sort((a, b) => a - b)
    const n = ms.length
    return {
      value: ms[Math.floor(n / 2)] ?? 0,
      p99_ms: ms[Math.floor(n * 99 / 100)] ?? 0,
      max_ms: ms[n - 1] ?? 0,
      lost,
      duplicates: this.again,
      late: this.late,
      order_violations: 0
    }
  }
}

export const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))

// clients calls f again and again, n at a time, and returns how often it
// succeeded, and that per second.
export async function clients (n, seconds, f) {
  const begun = performance.now()
  let count = 0
  await Promise.all(Array.from({ length: n }, async (_, c) => {
    for (let i = 0; performance.now() - begun < seconds * 1000; i++) {
      await f(c, i)
      count++
    }
  }))
  return [count, count / ((performance.now() - begun) / 1000)]
}

// openLoop calls f at a rate, whether or not the earlier calls have ended.
export async function openLoop (rate, seconds, f) {
  const calls = []
  const begun = performance.now()
  for (let i = 0; ;) {
    const now = (performance.now() - begun) / 1000
    if (now >= seconds) break
    for (; i < now * rate; i++) calls.push(f(i))
    await sleep(1)
  }
  await Promise.all(calls)
}
