package traffic_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/keylinehq/keyline"
	"github.com/keylinehq/keyline/examples/crm/crm"
	"github.com/keylinehq/keyline/examples/crm/fakeprovider"
	"github.com/keylinehq/keyline/examples/crm/faults"
	"github.com/keylinehq/keyline/examples/crm/internal/crmtest"
	"github.com/keylinehq/keyline/examples/crm/recorder"
	"github.com/keylinehq/keyline/examples/crm/traffic"
	"github.com/keylinehq/keyline/internal/testdb"
)

const (
	envWorker = "CRM_TEST_WORKER" // the database's URL
	envName   = "CRM_TEST_WORKER_NAME"
)

// workerProcess is a worker until it gets SIGTERM. The one that is named victim
// never comes back from a flaky activity's creation.
func workerProcess(url, name string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	provider, err := fakeprovider.New(ctx, pool)
	if err != nil {
		return err
	}
	hang := faults.Rule{Match: faults.All(faults.Subject(traffic.Flaky), faults.Type("activity.created")), Consumers: []string{"timeline", "notification"},
		Fail: func(ctx context.Context, _ *keyline.Delivery) error {
			if name == "victim" {
				<-ctx.Done()
			}
			return ctx.Err()
		}}
	consumers := recorder.Record(faults.Inject(crm.Consumers(crm.Deps{DB: pool, Provider: provider}), hang), pool, name)
	worker, err := keyline.NewWorker(pool, keyline.Config{Name: name, Lease: 3 * time.Second, ShutdownGrace: 10 * time.Second}, consumers...)
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

type process struct {
	*exec.Cmd
	said *bytes.Buffer
}

// startProcess starts a worker process and waits until it has joined.
func startProcess(t *testing.T, a *crmtest.App, name string) process {
	t.Helper()
	p := process{exec.Command(os.Args[0]), &bytes.Buffer{}}
	p.Env = append(os.Environ(), envWorker+"="+a.URL, envName+"="+name)
	p.Stdout, p.Stderr = p.said, p.said
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	testdb.Eventually(t, func() bool {
		return crmtest.Get[int64](a, "select count(*) from keyline.workers where name = $1 and status = 'live'", name) == 1
	}, "%s to join", name)
	return p
}

func (p process) stop(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("a worker ended with %v:\n%s", err, p.said)
	}
}

// cutShort counts the handlers of the victim that hang in a flaky activity.
const cutShort = `
select count(distinct (b.consumer, b.record_key)) from crm.delivered_log b
join keyline.records r on r.tenant = b.tenant and r.record_key = b.record_key
join keyline.events e on e.record_id = r.id and e.seq = b.seq
where b.mark = 'begin' and b.worker = 'victim' and b.consumer in ('timeline', 'notification')
  and e.type = 'activity.created' and e.payload->>'subject' like '%[flaky]'
  and not exists (select from crm.delivered_log d where d.mark = 'done' and d.run = b.run)`

// Promise (P17, P18): a worker process is killed in the middle of its handlers,
// under traffic. The others take over what it held: nothing is lost or out of order, only
// what ran at that moment may run twice, and HandleTx not even that.
func TestTrafficSurvivesAWorkerThatIsKilledInItsHandlers(t *testing.T) {
	t.Parallel()
	a := recorded(t)
	victim := startProcess(t, a, "victim")
	testdb.Eventually(t, func() bool {
		probe := a.Create()
		a.Settled()
		return crmtest.Get[int64](a, "select count(*) from crm.delivered_log where record_key = $1 and mark = 'done'", crm.Key("", probe.ID).Record) == 4
	}, "the consumers to be active, and the victim to know")
	before := crmtest.Get[int64](a, "select count(*) from keyline.events")
	first := run(t, a, traffic.Config{Clients: 3, Activities: 10, Operations: 60, Flaky: 2})
	testdb.Eventually(t, func() bool {
		return crmtest.Get[int64](a, cutShort) == 4
	}, "four handlers of the victim to hang")
	others := []process{startProcess(t, a, "second"), startProcess(t, a, "third")}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait()
	second := run(t, a, traffic.Config{Clients: 3, Activities: 10, Operations: 60})
	a.Settled()
	r := check(t, a)
	if !r.OK() || r.Dead != 0 || r.Delivered != r.Expected || r.Appended != before+first.Appended+second.Appended {
		t.Errorf("deliveries: %+v\n%s%s", r, others[0].said, others[1].said)
	}
	for _, name := range []string{"timeline", "calendar"} {
		if n := r.Consumers[name].Redelivered; n != 0 {
			t.Errorf("%s, which is a HandleTx, succeeded %d times more than once", name, n)
		}
	}
	if n := crmtest.Get[int64](a, cutShort); n != 4 {
		t.Errorf("%d deliveries of flaky activities were cut short", n)
	}
	if got := crmtest.Get[string](a, "select status from keyline.workers where name = 'victim'"); got != "lost" {
		t.Errorf("the victim is %s", got)
	}
	for _, p := range others {
		p.stop(t)
	}
	if n := crmtest.Get[int64](a, "select count(*) from keyline.workers where status = 'live'"); n != 0 {
		t.Errorf("%d workers are live after they have stopped", n)
	}
}
