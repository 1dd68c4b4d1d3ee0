package api

import (
	"context"
	"net/http"
	"time"

	"github.com/keylinehq/keyline"
)

// DoctorReport is what surrounds the installation; it is OK where nothing failed.
type DoctorReport struct {
	OK     bool          `json:"ok"`
	Checks []DoctorCheck `json:"checks" nullable:"false"`
}

// DoctorCheck is one look of the doctor.
type DoctorCheck struct {
	ID     string `json:"id"`
	Status string `json:"status" enum:"ok,warn,fail"`
	Detail string `json:"detail"`
	// Fix says what to do; "" where nothing is to be done.
	Fix string `json:"fix"`
}

// pruneBody is what a look at what could be pruned takes.
type pruneBody struct {
	OlderThan    int64 `json:"older_than_days,omitempty" minimum:"1" maximum:"36500" doc:"How long settled events are kept at least; 90 where it is left out."`
	KeepFailures int64 `json:"keep_failures_days,omitempty" minimum:"1" maximum:"36500" doc:"How long failed attempts and ended workers are kept; 7 where it is left out."`
}

const day = 24 * time.Hour

func (h *Handler) registerInstallation() {
	const tag = "installation"
	add(h, operation{
		id: "whoami", method: http.MethodGet, path: "/v1/whoami", tag: tag, role: keyline.RoleViewer, scope: scopeRecords,
		summary: "The token that this request carries",
	}, func(_ context.Context, s *session, _ *none) (*answer[keyline.Token], error) {
		return answered(s.token, nil)
	})
	add(h, operation{
		id: "overview", method: http.MethodGet, path: "/v1/overview", tag: tag, role: keyline.RoleViewer, scope: scopeInstallation,
		summary: "The installation at a glance",
	}, func(ctx context.Context, s *session, _ *none) (*answer[keyline.Overview], error) {
		return answered(s.Overview(ctx))
	})
	whole(h, operation{
		id: "health", method: http.MethodGet, path: "/v1/health", tag: tag, role: keyline.RoleViewer, scope: scopeInstallation,
		summary: "How each consumer fares", detail: "What it has done and what waits for it, as a leading worker last counted it. Cheap at any size.",
	}, func(ctx context.Context, s *session, _ *none) ([]keyline.ConsumerHealth, error) {
		return s.ConsumerHealth(ctx)
	})
	whole(h, operation{
		id: "stuck", method: http.MethodGet, path: "/v1/stuck", tag: tag, role: keyline.RoleViewer, scope: scopeInstallation,
		summary: "The records that have waited longest, and for what",
		detail:  "Due and taken by nobody (ready), claimed, backoff or parked, the longest first. Cheap at any size: it may miss some where thousands wait.",
	}, func(ctx context.Context, s *session, in *struct {
		Limit int `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The most records."`
	}) ([]keyline.StuckRecord, error) {
		return s.Stuck(ctx, in.Limit)
	})
	add(h, operation{
		id: "verify", method: http.MethodPost, path: "/v1/verify", tag: tag, role: keyline.RoleOperator, scope: scopeInstallation,
		summary: "Look for what must not be", detail: "Reads all records, in chunks, beside live traffic: on a large installation it takes long. It changes nothing.",
	}, func(ctx context.Context, s *session, _ *struct{ Body none }) (*answer[keyline.Verification], error) {
		return answered(s.Verify(ctx, keyline.VerifyOptions{}))
	})
	add(h, operation{
		id: "doctor", method: http.MethodPost, path: "/v1/doctor", tag: tag, role: keyline.RoleOperator, scope: scopeInstallation,
		summary: "What keeps workers from working well, and how to mend it", detail: "As seen from where this API runs. It changes nothing. 404 where this server does not offer it.",
	}, func(ctx context.Context, _ *session, _ *struct{ Body none }) (*answer[DoctorReport], error) {
		if h.cfg.Doctor == nil {
			return nil, problem(http.StatusNotFound, keyline.CodeNotFound, "this server does not offer it: run `keyline doctor` where workers run")
		}
		return answered(h.cfg.Doctor(ctx))
	})
	add(h, operation{
		id: "prunePreview", method: http.MethodPost, path: "/v1/prune/preview", tag: tag, role: keyline.RoleOperator, scope: scopeInstallation,
		summary: "What a prune would delete, and what holds the rest back", detail: "It deletes nothing: `keyline prune` does, from a scheduler.",
	}, func(ctx context.Context, s *session, in *struct{ Body pruneBody }) (*answer[keyline.PruneReport], error) {
		r, err := s.Prune(ctx, "", keyline.PruneOptions{DryRun: true,
			OlderThan: time.Duration(in.Body.OlderThan) * day, KeepFailures: time.Duration(in.Body.KeepFailures) * day})
		if r.HeldBack == nil {
			r.HeldBack = []keyline.PruneHold{}
		}
		return answered(r, err)
	})
	add(h, operation{
		id: "recover", method: http.MethodPost, path: "/v1/recover", tag: tag, role: keyline.RoleOperator, scope: scopeInstallation,
		summary: "Free the claims of workers that are lost",
		detail:  "Marks workers lost that stay silent for a whole lease while it watches, which is how long it may take.",
	}, func(ctx context.Context, s *session, in *struct{ Body WithReason }) (*answer[keyline.Recovered], error) {
		return answered(s.RecoverStaleClaims(ctx, in.Body.Reason))
	})
}
