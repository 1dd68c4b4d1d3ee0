package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/keylinehq/keyline"
)

// drainBody is what became of a drain.
type drainBody struct {
	// Left is false where it is asked and has not left yet.
	Left bool `json:"left" doc:"False where it is asked and has not left yet."`
	keyline.DrainedWorker
}

func (h *Handler) registerWorkers() {
	const tag = "workers"
	whole(h, operation{
		id: "listWorkers", method: http.MethodGet, path: "/v1/workers", tag: tag, role: keyline.RoleViewer, scope: scopeInstallation,
		summary: "The workers that live, those that were lost within the hour, and those whose claims are still to be freed",
	}, func(ctx context.Context, s *session, _ *none) ([]keyline.WorkerView, error) { return s.Workers(ctx) })
	add(h, operation{
		id: "drainWorker", method: http.MethodPost, path: "/v1/workers/{id}/drain", tag: tag, role: keyline.RoleOperator, scope: scopeInstallation,
		summary:  "Have a worker finish what runs, hand back the rest and leave",
		detail:   "202 says that it is asked and stays asked, but had not left within wait_seconds.",
		accepted: true,
	}, func(ctx context.Context, s *session, in *struct {
		ID   int64 `path:"id" minimum:"1" doc:"The worker's number."`
		Body ActBody
	}) (*struct {
		Status int
		Body   drainBody
	}, error) {
		waiting, cancel := context.WithTimeout(ctx, time.Duration(in.Body.Wait)*time.Second)
		defer cancel()
		d, err := s.DrainWorker(waiting, in.ID, in.Body.Reason)
		out := &struct {
			Status int
			Body   drainBody
		}{http.StatusOK, drainBody{true, d}}
		if errors.Is(err, &keyline.Error{Code: keyline.CodeNotAppliedYet}) && ctx.Err() == nil {
			out.Status, out.Body.Left = http.StatusAccepted, false
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		return out, nil
	})
}
