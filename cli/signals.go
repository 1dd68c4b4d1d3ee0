package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// signals are SIGINT, SIGTERM and SIGHUP, which a terminal leaves behind that is closed, as contexts: the first one asks for an orderly
// end, the second one hastens it, and neither is ever the death of a process
// that has something to hand back. After the second, signals have their usual
// effect again. Where there was one, they have none: the process is about to
// end, and should do so with its exit code.
type signals struct {
	stop  context.Context
	hurry context.Context

	end  context.CancelFunc
	done chan struct{}
}

func catchSignals() *signals {
	caught := make(chan os.Signal, 2)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		signal.Notify(caught, syscall.SIGHUP)
	}
	stop, cancelStop := context.WithCancel(context.Background())
	hurry, cancelHurry := context.WithCancel(context.Background())
	life, end := context.WithCancel(context.Background())
	s := &signals{stop: stop, hurry: hurry, end: end, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer cancelStop()
		defer cancelHurry()
		for n, cancel := range []context.CancelFunc{cancelStop, cancelHurry} {
			select {
			case <-caught:
				cancel()
			case <-life.Done():
				if n == 0 {
					signal.Stop(caught)
				}
				return
			}
		}
		signal.Stop(caught)
	}()
	return s
}

// outliveReaders has a program that serves go on where nobody reads what it writes any more: a collector of logs that was
// restarted, or a pager that was left. Without it, the next line would be the end of the process, in the middle of its handlers.
func outliveReaders() { signal.Ignore(syscall.SIGPIPE) }

func (s *signals) release() {
	s.end()
	<-s.done
}
