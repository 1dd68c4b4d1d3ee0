package keyline

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
)

type stateError string

func (e stateError) Error() string    { return "the server says " + string(e) }
func (e stateError) SQLState() string { return string(e) }

func TestTranslateClassesEveryError(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err   error
		class error
		code  string
	}{
		{stateError("KL001"), ErrConflict, CodeWrongExpectedSeq},
		{stateError("KL002"), ErrConflict, CodeIdempotencyConflict},
		{stateError("KL003"), ErrInvalid, CodeInvalidArgument},
		{stateError("KL004"), ErrInvalid, CodeUnknownEventType},
		{stateError("KL005"), ErrInvalid, CodePayloadTooLarge},
		{stateError("KL006"), ErrNotFound, CodeNotFound},
		{stateError("KL007"), ErrInvalid, CodeInProcessType},
		{stateError("KL010"), ErrInvalid, CodeAppendOnly},
		{stateError("KL020"), ErrFenced, CodeWorkerNotLive},
		{stateError("22P02"), ErrInvalid, CodeInvalidArgument},
		{stateError("22003"), ErrInvalid, CodeInvalidArgument},
		{stateError("23505"), ErrConflict, CodeConstraint},
		{stateError("23514"), ErrInvalid, CodeConstraint},
		{stateError("25P02"), nil, CodeTransactionAborted},
		{stateError("25006"), ErrUnavailable, CodeUnavailable},
		{stateError("40001"), ErrConflict, CodeSerialization},
		{stateError("40P01"), ErrConflict, CodeDeadlock},
		{stateError("42501"), nil, CodePermissionDenied},
		{stateError("42883"), ErrNotFound, CodeNotInstalled},
		{stateError("3F000"), ErrNotFound, CodeNotInstalled},
		{stateError("53300"), ErrUnavailable, CodeUnavailable},
		{stateError("54001"), ErrInvalid, CodeTooComplex},
		{stateError("55P03"), ErrUnavailable, CodeLockTimeout},
		{stateError("57014"), ErrUnavailable, CodeCancelled},
		{stateError("57P01"), ErrUnavailable, CodeUnavailable},
		{stateError("58030"), ErrUnavailable, CodeUnavailable},
		{stateError("08006"), ErrUnavailable, CodeUnavailable},
		{stateError("XX000"), nil, CodeDatabase},
		{stateError("?"), nil, CodeDatabase},
		{io.ErrUnexpectedEOF, ErrUnavailable, CodeUnavailable},
		{context.DeadlineExceeded, ErrUnavailable, CodeUnavailable},
		{context.Canceled, nil, CodeCancelled},
		{pgx.ErrTxClosed, nil, CodeTransactionClosed},
		{sql.ErrTxDone, nil, CodeTransactionClosed},
	} {
		err := translate("append", fmt.Errorf("wrapped: %w", tc.err))
		var e *Error
		if !errors.As(err, &e) || e.Code != tc.code || !errors.Is(err, tc.err) || ErrorCode(err) != tc.code {
			t.Errorf("%v became %v, want the code %s with the cause in the chain", tc.err, err, tc.code)
		}
		for _, class := range []error{ErrConflict, ErrInvalid, ErrFenced, ErrUnavailable, ErrNotFound} {
			if errors.Is(err, class) != errors.Is(tc.class, class) {
				t.Errorf("%v: is it %v? %v", tc.err, class, errors.Is(err, class))
			}
		}
	}
	if err := translate("append", nil); err != nil {
		t.Errorf("nil became %v", err)
	}
	own := wrong("Type", "is empty")
	if err := translate("append", own); err != error(own) { //nolint:errorlint // the very same one
		t.Errorf("an *Error became %v", err)
	}
}

func TestErrorsMatchByCode(t *testing.T) {
	t.Parallel()
	err := error(wrong("Type", "is empty"))
	if !errors.Is(err, &Error{Code: CodeInvalidArgument}) || errors.Is(err, &Error{Code: CodeNotFound}) {
		t.Error("an *Error does not match by its code")
	}
	if text := withOp("append", err).Error(); text != "keyline: append: Type: is empty" {
		t.Error(text)
	}
}
