// Command keyline is the command line of Keyline and its standalone worker.
package main

import (
	"os"

	"github.com/keylinehq/keyline/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:])) }
