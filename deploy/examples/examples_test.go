// Package examples holds example configurations.
package examples

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/config"
)

func TestExamplesCanBeUsed(t *testing.T) {
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		if strings.HasPrefix(file, "target") {
			_, err = config.LoadTarget(config.Sources{File: file})
		} else {
			_, err = config.LoadRelay(config.Sources{File: file})
		}
		if err != nil {
			t.Errorf("%v", err)
		}
	}
}
