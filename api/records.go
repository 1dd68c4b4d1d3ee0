package api

import (
	"context"
	"net/http"

	"github.com/keylinehq/keyline"
)

// skipBody names the head of a consumer on a record.
type skipBody struct {
	ActBody
	Tenant   *string `json:"tenant,omitempty" maxLength:"512" doc:"Left out: the token's own, or \"\"."`
	Key      string  `json:"key" minLength:"1" maxLength:"512" doc:"The record's key."`
	Consumer string  `json:"consumer" minLength:"1" maxLength:"300"`
	Seq      int64   `json:"seq,omitempty" minimum:"1" doc:"The event that is meant: it answers 409 where the consumer is at another one. Left out: whichever it is at."`
}

func (h *Handler) registerRecords() {
	const tag = "records"
	pages(h, operation{
		id: "listRecords", method: http.MethodGet, path: "/v1/records", tag: tag, role: keyline.RoleViewer, scope: scopeRecords,
		summary: "Records by tenant and key",
	}, func(ctx context.Context, s *session, in *struct {
		TenantParam
		Prefix string `query:"prefix" maxLength:"512" doc:"How the key begins; of the tenant \"\" where no tenant is given."`
		Paging
	}, after keyline.Key, limit int) ([]keyline.RecordSummary, error) {
		f := keyline.RecordFilter{Tenant: in.filter(), Prefix: in.Prefix, Limit: limit}
		if after != (keyline.Key{}) {
			f.After = &after
		}
		return s.Records(ctx, f)
	}, func(r keyline.RecordSummary) keyline.Key { return keyline.Key{Tenant: r.Tenant, Record: r.Record} })
	add(h, operation{
		id: "getRecord", method: http.MethodGet, path: "/v1/record", tag: tag, role: keyline.RoleViewer, scope: scopeRecords,
		summary: "A record, where each consumer stands on it, and its last events", detail: "Without payloads. A record is named by parameters, since a key may hold any character.",
	}, func(ctx context.Context, s *session, in *struct {
		KeyParam
		Events int `query:"events" minimum:"0" maximum:"100" default:"10" doc:"How many of the last events."`
	}) (*answer[keyline.RecordView], error) {
		v, err := s.InspectRecord(ctx, s.key(in.filter(), in.Key), in.Events)
		v.Events, v.Positions = orEmpty(v.Events), orEmpty(v.Positions)
		return answered(v, err)
	})
	add(h, operation{
		id: "why", method: http.MethodGet, path: "/v1/record/why", tag: tag, role: keyline.RoleViewer, scope: scopeRecords,
		summary: "Why a record is where it is, and what to do next",
	}, func(ctx context.Context, s *session, in *KeyParam) (*answer[keyline.Why], error) {
		return answered(s.Why(ctx, s.key(in.filter(), in.Key)))
	})
	const events = "listEvents"
	add(h, operation{
		id: events, method: http.MethodGet, path: "/v1/record/events", tag: tag, role: keyline.RoleViewer, scope: scopeRecords,
		summary: "A record's events by seq, with the state of each delivery",
		detail:  "Without payloads. For a viewer, who is not shown events of internal types, a page can be short and not be the last.",
	}, func(ctx context.Context, s *session, in *struct {
		KeyParam
		Paging
	}) (*answer[Page[keyline.RecordEvent]], error) {
		key := s.key(in.filter(), in.Key)
		f := keyline.EventFilter{Limit: in.Limit}
		if err := decode(in.Paging, events, &f.After); err != nil {
			return nil, err
		}
		list, err := s.Events(ctx, key, f)
		if err != nil {
			return nil, err
		}
		record, err := s.InspectRecord(ctx, key, 0)
		if err != nil {
			return nil, err
		}
		out := Page[keyline.RecordEvent]{Items: orEmpty(list)}
		// What is not shown takes part in the page: it is a span of seqs.
		last := f.After
		if len(list) > 0 {
			last = list[len(list)-1].Seq
		}
		if len(list) < in.Limit {
			last = max(last, f.After+int64(in.Limit))
		}
		if last < record.Head {
			out.Next = cursor(events, last)
		}
		return answered(out, nil)
	})
	add(h, operation{
		id: "skipHead", method: http.MethodPost, path: "/v1/record/skip", tag: tag, role: keyline.RoleOperator, scope: scopeRecords,
		summary: "Give up the event that a consumer is in backoff or parked on", detail: actDetail, accepted: true,
	}, func(ctx context.Context, s *session, in *struct{ Body skipBody }) (*acted, error) {
		return one(ctx, in.Body.ActBody, func(ctx context.Context) (keyline.Act, error) {
			return s.SkipHead(ctx, s.key(in.Body.Tenant, in.Body.Key), in.Body.Consumer, in.Body.Seq, in.Body.Reason)
		})
	})
}
