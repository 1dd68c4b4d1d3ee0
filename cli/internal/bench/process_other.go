//go:build !unix

package bench

import "errors"

const canFreeze = false

func (*process) freeze() error { return errors.ErrUnsupported }
