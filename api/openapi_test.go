package api_test

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/keylinehq/keyline/api"
)

var update = flag.Bool("update", false, "write openapi.yaml anew")

func TestTheCommittedDescriptionIsUpToDate(t *testing.T) {
	got, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("openapi.yaml", got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("openapi.yaml is not what the operations are; go test ./api -run Description -update writes it anew:\n%s", diff)
	}
}
