// Guarantees runs the tests that docs/guarantees.md names as the proof of each
// promise, with the race detector on, and fails if one of them fails, is
// skipped (or has a skipped part), or does not exist. `make guarantees` runs it.
//
// The file holds tables whose header begins with "id" and ends with "tests".
// The last cell of a row names one or more tests, each in backquotes as
// `package/path: TestName`, or `.: TestName` for the root package.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	file := flag.String("file", "docs/guarantees.md", "the table of promises")
	timeout := flag.Duration("timeout", 30*time.Minute, "passed to go test: the limit for the tests of one package")
	only := flag.String("only", "", "run this id alone")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := prove(ctx, ".", *file, *only, *timeout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "guarantees:", err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

func prove(ctx context.Context, dir, file, only string, timeout time.Duration) (bool, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return false, err
	}
	promises, err := parse(string(content), only)
	if err != nil {
		return false, fmt.Errorf("%s: %w", file, err)
	}
	results, err := runTests(ctx, dir, promises, timeout, os.Stderr)
	if err != nil {
		return false, err
	}
	return report(os.Stdout, promises, results), nil
}
