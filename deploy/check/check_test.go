// Package check holds what lies in deploy/ to the parsers of those who will read it; those that take minutes to
// compile are in heavy.
package check

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/coreos/go-systemd/v22/unit"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/rulefmt"
	promql "github.com/prometheus/prometheus/promql/parser"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// shutdownGrace is the worker's default: whatever stops it must wait longer.
const shutdownGrace = 30 * time.Second

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", path))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestDockerfileEndsWithoutShellAndRoot(t *testing.T) {
	file, err := parser.Parse(bytes.NewReader(read(t, "Dockerfile")))
	if err != nil {
		t.Fatal(err)
	}
	stages, _, err := instructions.Parse(file.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := stages[len(stages)-1]
	if len(stages) != 2 || !strings.HasPrefix(last.BaseName, "gcr.io/distroless/static") {
		t.Errorf("%d stages, the last from %s", len(stages), last.BaseName)
	}
	var user, entry bool
	for _, command := range last.Commands {
		switch c := command.(type) {
		case *instructions.UserCommand:
			user = c.User == "65532:65532" // a number, which Kubernetes can tell from root
		case *instructions.EntrypointCommand:
			entry = !c.PrependShell
		case *instructions.RunCommand, *instructions.AddCommand:
			t.Errorf("%s in the last stage", command.Name())
		}
	}
	if !user || !entry {
		t.Errorf("user %v, entry point %v", user, entry)
	}
}

func TestComposeIsWholeAndStaysOnThisMachine(t *testing.T) {
	dir := filepath.Join("..", "compose")
	project, err := loader.LoadWithContext(context.Background(), types.ConfigDetails{WorkingDir: dir,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}}, Environment: types.Mapping{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"postgres", "migrate", "roles", "worker", "jaeger", "prometheus", "grafana"} {
		if _, ok := project.Services[name]; !ok {
			t.Errorf("no service %s", name)
		}
	}
	for name, s := range project.Services {
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s is published at %q", name, p.HostIP)
			}
		}
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				if _, err := os.Stat(v.Source); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
	w := project.Services["worker"]
	if w.Deploy == nil || *w.Deploy.Replicas != 3 || time.Duration(*w.StopGracePeriod) <= shutdownGrace || !w.ReadOnly {
		t.Errorf("worker: %+v", w)
	}
}

// manifests are the objects that kustomize makes, each read as strictly as the server would.
func manifests(t *testing.T) []runtime.Object {
	t.Helper()
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("..", "kubernetes"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := all.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, text)
}

func decode(t *testing.T, text []byte) (list []runtime.Object) {
	t.Helper()
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{core.AddToScheme, apps.AddToScheme, batch.AddToScheme, networking.AddToScheme, policy.AddToScheme} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	for docs := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text))); ; {
		doc := make([]byte, 1<<20)
		n, err := docs.Read(doc)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(doc[:n], nil, nil)
		if runtime.IsNotRegisteredError(err) && bytes.Contains(doc[:n], []byte("apiVersion: keda.sh/")) {
			continue // heavy reads it
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc[:n])
		}
		list = append(list, object)
	}
}

func one[T runtime.Object](t *testing.T, list []runtime.Object) (found T) {
	t.Helper()
	n := 0
	for _, o := range list {
		if v, ok := o.(T); ok {
			found, n = v, n+1
		}
	}
	if n != 1 {
		t.Fatalf("%d objects of %T", n, found)
	}
	return found
}

func TestManifestsAreWhatTheServerTakes(t *testing.T) {
	list := manifests(t)
	d, pdb := one[*apps.Deployment](t, list), one[*policy.PodDisruptionBudget](t, list)
	pod := d.Spec.Template
	for what, labels := range map[string]map[string]string{
		"deployment": d.Spec.Selector.MatchLabels, "budget": pdb.Spec.Selector.MatchLabels, "service": one[*core.Service](t, list).Spec.Selector} {
		for k, v := range labels {
			if pod.Labels[k] != v {
				t.Errorf("the %s selects %s=%s, the pods have %v", what, k, v, pod.Labels)
			}
		}
	}
	if d.Spec.Replicas != nil {
		t.Error("the number of workers is the autoscaler's")
	}
	if grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second; grace <= shutdownGrace {
		t.Errorf("killed after %s", grace)
	}
	c := pod.Spec.Containers[0]
	if c.LivenessProbe.HTTPGet.Path != "/livez" || c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.StartupProbe.HTTPGet.Path != "/livez" {
		t.Errorf("probes of %+v", c)
	}
	for _, o := range list {
		if o.GetObjectKind().GroupVersionKind().Kind == "Secret" {
			t.Error("a secret is applied")
		}
	}
	for _, spec := range podSpecs(list) {
		restricted(t, spec)
	}
	if n := len(decode(t, read(t, "kubernetes/secrets.example.yaml"))); n != 2 {
		t.Errorf("%d secrets", n)
	}
}

func podSpecs(list []runtime.Object) (specs []core.PodSpec) {
	for _, o := range list {
		text, err := json.Marshal(o)
		if err != nil {
			continue
		}
		var v struct {
			Spec struct{ Template core.PodTemplateSpec }
		}
		if json.Unmarshal(text, &v) == nil && len(v.Spec.Template.Spec.Containers) > 0 {
			specs = append(specs, v.Spec.Template.Spec)
		}
	}
	return specs
}

// restricted is what the namespace's pod security standard wants.
func restricted(t *testing.T, spec core.PodSpec) {
	t.Helper()
	s := spec.SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("pod: %+v", s)
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		s := c.SecurityContext
		if s == nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("%s: %+v", c.Name, s)
		}
		if strings.HasSuffix(c.Image, "keyline") || !strings.HasPrefix(c.Image, "registry.example.com/keyline:") {
			t.Errorf("%s: image %s", c.Name, c.Image)
		}
	}
}

func TestUnitIsWhatSystemdTakes(t *testing.T) {
	text := read(t, "systemd/keyline-worker.service")
	options, err := unit.DeserializeOptions(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, o := range options {
		have[o.Section+"."+o.Name] = o.Value
	}
	stop, err := time.ParseDuration(have["Service.TimeoutStopSec"] + "s")
	if err != nil || stop <= shutdownGrace || have["Service.Restart"] != "on-failure" || have["Service.NoNewPrivileges"] != "yes" {
		t.Errorf("%v %v", have, err)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("no systemd-analyze here: read by the parser alone")
		return
	}
	// What it runs need not be installed here.
	file := filepath.Join(t.TempDir(), "keyline-worker.service")
	if err := os.WriteFile(file, bytes.Replace(text, []byte("/usr/local/bin/keyline worker"), []byte("/bin/true worker"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

func TestPrometheusTakesTheRules(t *testing.T) {
	groups, errs := rulefmt.Parse(read(t, "prometheus/rules.yml"), false, model.UTF8Validation, promql.NewParser(promql.Options{}), promslog.NewNopLogger())
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	runbook := string(read(t, "../docs/operations.md"))
	for _, g := range groups.Groups {
		if len(g.Rules) < 8 {
			t.Errorf("%d rules", len(g.Rules))
		}
		for _, r := range g.Rules {
			if !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/operations.md#"+strings.ToLower(r.Alert)) || r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
				t.Errorf("%s: %v %v", r.Alert, r.Labels, r.Annotations)
			}
			if !strings.Contains(runbook, "\n### "+r.Alert+"\n") {
				t.Errorf("%s has no runbook", r.Alert)
			}
		}
	}
}

// The thresholds that docs/operations.md gives for the service levels are those of the rules.
func TestServiceLevelsAreThoseOfTheRules(t *testing.T) {
	groups, errs := rulefmt.Parse(read(t, "prometheus/rules.yml"), false, model.UTF8Validation, promql.NewParser(promql.Options{}), promslog.NewNopLogger())
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	rules := map[string]rulefmt.Rule{}
	for _, r := range groups.Groups[0].Rules {
		rules[r.Alert] = r
	}
	_, section, _ := strings.Cut(string(read(t, "../docs/operations.md")), "\n### Service levels\n")
	section, _, _ = strings.Cut(section, "\n### ")
	named := regexp.MustCompile("\\| `(Keyline[A-Za-z]+)`[^|]*\\| `([^`]+)`(?: for `([^`]+)`)? \\|\n").FindAllStringSubmatch(section, -1)
	if len(named) < 6 {
		t.Fatalf("%d rows name an alert", len(named))
	}
	for _, row := range named {
		r, ok := rules[row[1]]
		if lasts, err := model.ParseDuration(cmp.Or(row[3], "0s")); !ok || err != nil || r.For != lasts || !strings.Contains(r.Expr, row[2]) {
			t.Errorf("%s: %q for %s, the rule says %q for %s", row[1], row[2], row[3], r.Expr, r.For)
		}
	}
}

func TestDashboardIsWhatGrafanaTakes(t *testing.T) {
	text := read(t, "grafana/keyline.json")
	var d dashboard.Dashboard
	if err := d.UnmarshalJSONStrict(text); err != nil && err.Error() != "" { // a list of errors that may be empty
		t.Fatal(err)
	}
	if err := new(dashboard.Dashboard).UnmarshalJSONStrict([]byte(`{"titel": "Keyline"}`)); err == nil || err.Error() == "" {
		t.Error("it takes anything")
	}
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	var loose struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &loose); err != nil {
		t.Fatal(err)
	}
	if len(loose.Panels) < 8 {
		t.Errorf("%d panels", len(loose.Panels))
	}
	p := promql.NewParser(promql.Options{})
	for _, panel := range loose.Panels {
		for _, target := range panel.Targets {
			if _, err := p.ParseExpr(strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")); err != nil {
				t.Errorf("%s: %v", panel.Title, err)
			}
		}
		if len(panel.Targets) == 0 {
			t.Errorf("%s shows nothing", panel.Title)
		}
	}
}
