package api

import (
	"context"
	"net/http"
	"time"

	"github.com/keylinehq/keyline"
)

// DeadLetterParam names a dead letter.
type DeadLetterParam struct {
	ID int64 `path:"id" minimum:"1" doc:"The dead letter's number."`
}

func (h *Handler) registerDeadLetters() {
	const tag = "dead letters"
	pages(h, operation{
		id: "listDeadLetters", method: http.MethodGet, path: "/v1/dead-letters", tag: tag, role: keyline.RoleViewer, scope: scopeRecords,
		summary: "Dead letters, the newest first", detail: "Without payloads.",
	}, func(ctx context.Context, s *session, in *struct {
		TenantParam
		Record   string    `query:"record" maxLength:"512" doc:"Only this record's."`
		Consumer string    `query:"consumer" maxLength:"300" doc:"Only this consumer's."`
		Code     string    `query:"code" maxLength:"300" doc:"Only those with this error code."`
		Type     string    `query:"type" maxLength:"300" doc:"Only those of this event type."`
		Since    time.Time `query:"since" doc:"Only those that failed last at this time or later."`
		Until    time.Time `query:"until" doc:"Only those that failed last before this time."`
		Status   []string  `query:"status" enum:"open,retrying,delivered,resolved" nullable:"false" default:"open,retrying" doc:"Any of them."`
		Paging
	}, below int64, limit int) ([]keyline.DeadLetter, error) {
		f := keyline.DeadLetterFilter{Consumer: in.Consumer, Code: in.Code, Type: in.Type, Tenant: in.filter(), Since: in.Since, Until: in.Until,
			Statuses: in.Status, Below: below, Limit: limit}
		if in.Record != "" {
			f.Record = &in.Record
		}
		return s.DeadLetters(ctx, f)
	}, func(d keyline.DeadLetter) int64 { return d.ID })
	add(h, operation{
		id: "getDeadLetter", method: http.MethodGet, path: "/v1/dead-letters/{id}", tag: tag, role: keyline.RoleViewer, scope: scopeRecords,
		summary: "A dead letter",
	}, func(ctx context.Context, s *session, in *DeadLetterParam) (*answer[keyline.DeadLetter], error) {
		list, err := s.DeadLetters(ctx, keyline.DeadLetterFilter{ID: in.ID})
		if err == nil && len(list) == 0 {
			err = problem(http.StatusNotFound, keyline.CodeNotFound, "there is no such dead letter")
		}
		if err != nil {
			return nil, err
		}
		return answered(list[0], nil)
	})
	for _, act := range []struct {
		verb, summary string
		do            func(keyline.Operator, context.Context, int64, string) (keyline.Act, error)
	}{
		{"retry", "Deliver a dead letter again", keyline.Operator.RetryDeadLetter},
		{"resolve", "Give a dead letter up", keyline.Operator.ResolveDeadLetter},
	} {
		add(h, operation{
			id: act.verb + "DeadLetter", method: http.MethodPost, path: "/v1/dead-letters/{id}/" + act.verb, tag: tag,
			role: keyline.RoleOperator, scope: scopeRecords, summary: act.summary, detail: actDetail, accepted: true,
		}, func(ctx context.Context, s *session, in *struct {
			DeadLetterParam
			Body ActBody
		}) (*acted, error) {
			return one(ctx, in.Body, func(ctx context.Context) (keyline.Act, error) { return act.do(s.Operator, ctx, in.ID, in.Body.Reason) })
		})
	}
}
