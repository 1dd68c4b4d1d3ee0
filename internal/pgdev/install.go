package pgdev

import (
	"errors"
	"fmt"
)

// ErrNoServer says that no PostgreSQL server binaries were found. What Find and
// Start return for it is a *NoServerError.
var ErrNoServer = errors.New("no PostgreSQL server found on this machine")

// NoServerError is ErrNoServer with the way out of it.
type NoServerError struct {
	// Looked says in words where the binaries were looked for.
	Looked string
	// Install is the one line that installs them on this system; empty where
	// no known package manager is.
	Install string
}

func (e *NoServerError) Error() string {
	msg := fmt.Sprintf("%v (looked in %s)", ErrNoServer, e.Looked)
	if e.Install == "" {
		return msg + "; install PostgreSQL 15 or newer, or set " + EnvBinDir + " or DATABASE_URL"
	}
	return msg + "; install one with: " + e.Install
}

// Is makes errors.Is(err, ErrNoServer) true.
func (e *NoServerError) Is(target error) bool { return target == ErrNoServer }

// installer is a package manager and the command that installs a PostgreSQL
// server with it. scripts/ensure-postgres runs the same commands.
type installer struct {
	program string
	command string
	asRoot  bool
}

var installers = []installer{
	{"apt-get", "apt-get install -y --no-install-recommends postgresql", true},
	{"dnf", "dnf install -y postgresql-server", true},
	{"apk", "apk add postgresql", true},
	{"zypper", "zypper --non-interactive install postgresql-server", true},
	{"pacman", "pacman -S --noconfirm postgresql", true},
	{"brew", "brew install postgresql@17", false},
}

func (m machine) noServer(looked string) error {
	e := &NoServerError{Looked: looked}
	for _, in := range installers {
		if _, err := m.lookPath(in.program); err != nil {
			continue
		}
		e.Install = in.command
		if in.asRoot && m.uid != 0 {
			e.Install = "sudo " + in.command
		}
		break
	}
	return e
}
