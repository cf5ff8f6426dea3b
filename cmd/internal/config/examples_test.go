package config

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestExamplesCanBeUsed(t *testing.T) {
	files, err := filepath.Glob("../../../deploy/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), "target") {
			_, err = LoadTarget(Sources{File: file})
		} else {
			_, err = LoadRelay(Sources{File: file})
		}
		if err != nil {
			t.Errorf("%v", err)
		}
	}
}
