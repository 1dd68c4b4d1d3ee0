package keyline

import (
	"fmt"
	"strings"

	"github.com/keylinehq/keyline/store"
)

// may refuses an act without the role, the actor or a required reason.
func (o *operator) may(op, reason string, reasonRequired bool) error {
	switch {
	case o.cfg.Role != RoleOperator && o.cfg.Role != RoleAdmin:
		return &Error{Code: CodePermissionDenied, Message: fmt.Sprintf("the role %s may not do that: it takes %s", o.cfg.Role, RoleOperator), op: op}
	case strings.TrimSpace(o.cfg.Actor) == "":
		return &Error{Code: CodeInvalidArgument, Field: "Actor", Message: "is required: the audit names who acts", op: op, class: ErrInvalid}
	case reasonRequired && strings.TrimSpace(reason) == "":
		return &Error{Code: CodeInvalidArgument, Field: "reason", Message: "is required: the audit says why", op: op, class: ErrInvalid}
	}
	return nil
}

// mayAdmin refuses what is about who may do what to all but admins.
func (o *operator) mayAdmin(op string) error {
	if o.cfg.Role == RoleAdmin {
		return nil
	}
	return &Error{Code: CodePermissionDenied, Message: fmt.Sprintf("the role %s may not do that: it takes %s", o.cfg.Role, RoleAdmin), op: op}
}

// mayAll refuses what concerns all tenants to an Operator that is one tenant's.
func (o *operator) mayAll(op string) error {
	if o.cfg.Tenant == nil {
		return nil
	}
	return &Error{Code: CodePermissionDenied, Message: "this concerns all tenants, and the operator is one tenant's", op: op}
}

// mayChangeAll refuses an act on the installation without the role, the actor or the scope.
func (o *operator) mayChangeAll(op, reason string, reasonRequired bool) error {
	if err := o.may(op, reason, reasonRequired); err != nil {
		return err
	}
	return o.mayAll(op)
}

// sees reports whether a tenant is this Operator's.
func (o *operator) sees(tenant string) bool { return o.cfg.Tenant == nil || *o.cfg.Tenant == tenant }

// notFound is the error of what is not there, or is another tenant's: the two read alike.
func notFound(op, format string, args ...any) *Error {
	return &Error{Code: CodeNotFound, Message: "there is no " + fmt.Sprintf(format, args...), op: op, class: ErrNotFound}
}

// noRecord is notFound of a record.
func noRecord(op string, key Key) *Error {
	return notFound(op, "record %q of tenant %q", key.Record, key.Tenant)
}

// query is a filter as the store takes it; ok is false where it asks for another tenant's.
func (o *operator) query(f DeadLetterFilter) (q store.DeadQuery, ok bool) {
	if f.Tenant != nil && !o.sees(*f.Tenant) {
		return q, false
	}
	if f.Tenant == nil {
		f.Tenant = o.cfg.Tenant
	}
	return store.DeadQuery{ID: f.ID, Consumer: f.Consumer, Code: f.Code, Type: f.Type, Tenant: f.Tenant, Record: f.Record, Since: f.Since, Until: f.Until,
		Statuses: f.Statuses, HideInternal: o.cfg.Role == RoleViewer}, true
}
