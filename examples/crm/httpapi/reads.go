package httpapi

import (
	"net/http"
	"time"
)

func (a *api) get(w http.ResponseWriter, r *http.Request) error {
	organization, err := organizationOf(r)
	if err != nil {
		return err
	}
	id, err := idOf(r)
	if err != nil {
		return err
	}
	activity, err := a.service.Get(r.Context(), organization, id)
	if err != nil {
		return err
	}
	return write(w, http.StatusOK, activity)
}

func (a *api) timeline(w http.ResponseWriter, r *http.Request) error {
	organization, err := organizationOf(r)
	if err != nil {
		return err
	}
	id, err := idOf(r)
	if err != nil {
		return err
	}
	entries, err := a.service.Timeline(r.Context(), organization, id)
	if err != nil {
		return err
	}
	return writeList(w, entries)
}

func (a *api) calendar(w http.ResponseWriter, r *http.Request) error {
	organization, err := organizationOf(r)
	if err != nil {
		return err
	}
	from, err := timeOf(r, "from")
	if err != nil {
		return err
	}
	to, err := timeOf(r, "to")
	if err != nil {
		return err
	}
	entries, err := a.service.Calendar(r.Context(), organization, from, to)
	if err != nil {
		return err
	}
	return writeList(w, entries)
}

func (a *api) dashboard(w http.ResponseWriter, r *http.Request) error {
	organization, err := organizationOf(r)
	if err != nil {
		return err
	}
	counts, err := a.service.Dashboard(r.Context(), organization)
	if err != nil {
		return err
	}
	return writeList(w, counts)
}

func timeOf(r *http.Request, parameter string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, r.URL.Query().Get(parameter))
	if err != nil {
		return t, badRequest(parameter, "must be a time as in 2026-01-31T09:00:00Z")
	}
	return t, nil
}
