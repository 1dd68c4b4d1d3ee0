// Package cli is the keyline command line, for the program keyline and for
// programs that bring consumers of their own to all of its commands:
//
//	func main() { os.Exit(cli.Run(os.Args[1:], consumers()...)) }
//
// Such a program is a worker (`worker`), its own migrator (`migrate up`) and
// its own operator's tool (`status`, `consumers`, `why`, `drain`), from one binary.
//
// Exit codes: 0 done; 1 failed, or a check found something; 2 wrong usage or
// input that can never be accepted; 3 not found,
// also the database or the schema in it; 4 conflict, or nothing to do; 5 the database is
// unavailable, or no worker has applied an act yet; 130 interrupted. Standard output is data, standard error is
// talk; progress is shown on a terminal only.
package cli
