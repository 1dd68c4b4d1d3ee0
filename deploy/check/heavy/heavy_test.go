// Package heavy holds what lies in deploy/ to those parsers that take minutes to compile where nothing is cached.
package heavy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	keda "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"github.com/prometheus/common/promslog"
	promconfig "github.com/prometheus/prometheus/config"
	_ "github.com/prometheus/prometheus/discovery/dns"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func TestAutoscalerIsWhatKEDATakes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "kubernetes", "keda.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	known := runtime.NewScheme()
	if err := keda.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	object, _, err := decoder.Decode(text, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	scaled, ok := object.(*keda.ScaledObject)
	if !ok || scaled.Spec.ScaleTargetRef.Name != "keyline-worker" || *scaled.Spec.MinReplicaCount < 2 {
		t.Errorf("scaled: %+v", object)
	}
	deployment, err := os.ReadFile(filepath.Join("..", "..", "kubernetes", "deployment.yaml"))
	if err != nil || !strings.Contains(string(deployment), "\n  name: "+scaled.Spec.ScaleTargetRef.Name+"\n") {
		t.Errorf("no deployment %s: %v", scaled.Spec.ScaleTargetRef.Name, err)
	}
	if !strings.Contains(scaled.Spec.Triggers[0].Metadata["query"], "keyline_mailbox_oldest_age_seconds") {
		t.Errorf("scaled by %v", scaled.Spec.Triggers)
	}
	if _, _, err := decoder.Decode([]byte(strings.Replace(string(text), "minReplicaCount", "leastReplicaCount", 1)), nil, nil); err == nil {
		t.Error("it takes anything")
	}
}

func TestPrometheusTakesItsConfiguration(t *testing.T) {
	cfg, err := promconfig.LoadFile(filepath.Join("..", "..", "prometheus", "prometheus.yml"), false, promslog.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.RuleFiles) != 1 || filepath.Base(cfg.RuleFiles[0]) != "rules.yml" {
		t.Errorf("rules: %v", cfg.RuleFiles)
	}
}
