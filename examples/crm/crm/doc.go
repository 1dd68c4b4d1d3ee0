// Package crm is the domain of the reference application: activities (calls,
// meetings, tasks, e-mails) of organizations, and four consumers of what
// happens to them.
//
// It shows the shape that every program with Keyline has. [Service] changes an
// activity, appends the event that says so and writes the audit log in one
// transaction, so that either all of it happened or nothing. [Consumers] are
// what happens because of it, later and apart: a timeline, a calendar, a
// dashboard and notifications. Whether they run, run late or fail never changes
// what the service answers.
//
// It imports Keyline's public API and pgx, nothing internal: copy from it.
package crm
