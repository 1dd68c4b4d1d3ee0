package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/keylinehq/keyline"
)

// actDetail is what is so of every act on a record.
const actDetail = "What succeeded is never repeated. Only the record's worker applies it: one has to run. " +
	"202 says that it is given and stays given, but was not applied within wait_seconds; asking again waits for the same one. " +
	"409 says that there was nothing to do."

// ActBody is what acts on records take.
type ActBody struct {
	WithReason
	Wait int `json:"wait_seconds,omitempty" minimum:"1" maximum:"60" default:"30" doc:"How long to wait until a worker has applied it."`
}

// actsBody is what became of acts on records.
type actsBody struct {
	// Applied is false where not all of them are applied yet.
	Applied bool          `json:"applied" doc:"False where it is given and not applied yet."`
	Acts    []keyline.Act `json:"acts" nullable:"false"`
}

// acted is the answer to an act on records.
type acted struct {
	Status int
	Body   actsBody
}

// one carries out one act.
func one(ctx context.Context, b ActBody, act func(context.Context) (keyline.Act, error)) (*acted, error) {
	return many(ctx, b, func(ctx context.Context) ([]keyline.Act, error) {
		a, err := act(ctx)
		return []keyline.Act{a}, err
	})
}

// many carries out an act of several parts.
func many(ctx context.Context, b ActBody, act func(context.Context) ([]keyline.Act, error)) (*acted, error) {
	waiting, cancel := context.WithTimeout(ctx, time.Duration(b.Wait)*time.Second)
	defer cancel()
	list, err := act(waiting)
	if list == nil {
		list = []keyline.Act{}
	}
	out := &acted{http.StatusOK, actsBody{true, list}}
	if errors.Is(err, &keyline.Error{Code: keyline.CodeNotAppliedYet}) && ctx.Err() == nil {
		out.Status, out.Body.Applied = http.StatusAccepted, false
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}
