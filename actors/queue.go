package actors

// link places a ticket in a Queue; a ticket is in one at most.
type link struct {
	prev, next *Ticket
	in         *Queue
}

// Queue is a first-in, first-out queue of tickets that any of them can leave
// at any time, without allocations. It is for gates, which guard it by a lock
// of their own.
type Queue struct {
	head, tail *Ticket
	n          int
}

// Len is the number of tickets queued.
func (q *Queue) Len() int { return q.n }

// Push appends t, which must not be queued anywhere.
func (q *Queue) Push(t *Ticket) {
	t.link = link{prev: q.tail, in: q}
	if q.tail == nil {
		q.head = t
	} else {
		q.tail.link.next = t
	}
	q.tail = t
	q.n++
}

// Pop takes the first ticket, or nil.
func (q *Queue) Pop() *Ticket {
	t := q.head
	if t != nil {
		q.Remove(t)
	}
	return t
}

// PopLast takes the last ticket, or nil.
func (q *Queue) PopLast() *Ticket {
	t := q.tail
	if t != nil {
		q.Remove(t)
	}
	return t
}

// Remove takes t out; false where it is not in this queue.
func (q *Queue) Remove(t *Ticket) bool {
	if t.link.in != q {
		return false
	}
	if t.link.prev == nil {
		q.head = t.link.next
	} else {
		t.link.prev.link.next = t.link.next
	}
	if t.link.next == nil {
		q.tail = t.link.prev
	} else {
		t.link.next.link.prev = t.link.prev
	}
	t.link = link{}
	q.n--
	return true
}
