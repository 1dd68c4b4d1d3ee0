package sim_test

import (
	"testing"

	"github.com/keylinehq/keyline/internal/conformance"
)

// TestTwinConforms: the twin keeps the contract that the store keeps.
func TestTwinConforms(t *testing.T) { conformance.Run(t, conformance.Twin) }
