package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/keylinehq/keyline/migrations"
)

// oldest is the first major version that Keyline works on.
const oldest = 15

// minors are the newest minor releases that were known when this was written: those before
// them have known bugs, of which some lose data.
var minors = map[int]int{15: 18, 16: 11, 17: 7, 18: 1}

func (v *visit) serverVersion(ctx context.Context) (finding, error) {
	var (
		number int
		text   string
	)
	if err := v.row(ctx, "server", nil, &number, &text); err != nil {
		return finding{}, err
	}
	return version(number, text), nil
}

func version(number int, text string) finding {
	major, minor := number/10_000, number%10_000
	switch newest, known := minors[major]; {
	case major < oldest:
		return finding{Fail, fmt.Sprintf("PostgreSQL %s; Keyline needs %d or newer", text, oldest), "upgrade the server"}
	case known && minor < newest:
		return finding{Warn, fmt.Sprintf("PostgreSQL %s; %d.%d has been released since, with fixes", text, major, newest), "install the newest minor release; it needs a restart and no dump"}
	}
	return fine("PostgreSQL %s", text)
}

func (v *visit) primary(ctx context.Context) (finding, error) {
	var standby, readOnly bool
	if err := v.row(ctx, "primary", nil, &standby, &readOnly); err != nil {
		return finding{}, err
	}
	switch {
	case standby:
		return finding{Fail, "the server is a standby: nothing can be written, and LISTEN does not work", "connect to the primary (target_session_attrs=read-write)"}, nil
	case readOnly:
		return finding{Fail, "transactions are read-only by default here", "set default_transaction_read_only to off for this role and database"}, nil
	}
	return fine("the server takes writes"), nil
}

func (v *visit) schema(ctx context.Context) (finding, error) {
	s, err := migrations.Read(ctx, v.conn, v.opts.Schema)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == insufficientPrivilege {
		return finding{Fail, err.Error(), v.grant(v.opts.Pool.ConnConfig.User)}, nil
	}
	if err != nil {
		return finding{}, err
	}
	switch err := s.Fit(); {
	case errors.Is(err, migrations.ErrNewer):
		return finding{Fail, err.Error(), "use the newer release"}, nil
	case err != nil:
		return finding{Fail, err.Error(), "keyline migrate up"}, nil
	case s.Ahead():
		return finding{Warn, fmt.Sprintf("schema %s is at version %d, newer than the %d of this binary, which it still serves", s.Schema, s.Current, s.Latest),
			"nothing while an upgrade is under way, or binaries were rolled back; then use the newer release: the next one may not serve this binary"}, nil
	}
	return fine("schema %s is at this binary's version", v.opts.Schema), nil
}

// insufficientPrivilege is insufficient_privilege.
const insufficientPrivilege = "42501"

// grant says how a role comes to what a worker needs.
func (v *visit) grant(role string) string {
	return fmt.Sprintf("grant %s_worker to %s (`keyline migrate roles` makes it), or run workers as the role that installed the schema", v.opts.Schema, role)
}

func (v *visit) privileges(ctx context.Context) (finding, error) {
	var (
		missing  []string
		role     string
		seesAll  bool
		mostShow = 10
	)
	if err := v.row(ctx, "privileges", []any{v.opts.Schema}, &role, &missing, &seesAll); err != nil {
		return finding{}, err
	}
	switch {
	case len(missing) > 0:
		shown := strings.Join(missing[:min(len(missing), mostShow)], ", ")
		if more := len(missing) - mostShow; more > 0 {
			shown += fmt.Sprintf(" and %d more", more)
		}
		return finding{Fail, fmt.Sprintf("a worker as %s lacks %s", role, shown), v.grant(role)}, nil
	case !seesAll:
		return finding{Warn, fmt.Sprintf("%s has all that a worker needs, but does not see other roles' sessions: the checks of sessions may miss some", role),
			"grant pg_read_all_stats to " + role}, nil
	}
	return fine("%s has all that a worker needs", role), nil
}
