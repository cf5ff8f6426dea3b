// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestExamplesAndTheirDumpsCanBeUsed(t *testing.T) {
	files, err := filepath.Glob("../../../deploy/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	files = append(files, write(t, "channels: [{targets: [10.0.0.5:7470, 10.0.0.6:7470], volume: disk}]"))
	for _, file := range files {
		d := daemons["relay"]
		if strings.HasPrefix(filepath.Base(file), "target") {
			d = daemons["target"]
		}
		first, err := d.dumpOf(t, Sources{File: file})
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		second, err := d.dumpOf(t, Sources{File: write(t, first)})
		if err != nil || second != first {
			t.Errorf("%s: the dump reads back with differences: %v", file, err)
		}
	}
}

func TestTheConfigurationsOfTheBlueFieldGuideCanBeUsed(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/recipes/bluefield.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(guide, -1)
	if len(blocks) != 2 {
		t.Fatalf("the guide has %d configurations, not one of a target and one of a relay",
			len(blocks))
	}
	files := make([]string, len(blocks))
	for i, block := range blocks {
		files[i] = filepath.Join(t.TempDir(), "guide.yaml")
		if err := os.WriteFile(files[i], block[1], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	target, err := LoadTarget(Sources{File: files[0]})
	if err != nil {
		t.Fatal(err)
	}
	relay, err := LoadRelay(Sources{File: files[1]})
	if err != nil {
		t.Fatal(err)
	}
	channel := &relay.Channels[0]
	if channel.Target.Address != target.Listen.Address || channel.Target.Port !=
		target.Listen.Port || channel.Volume != target.Volumes[0].Name ||
		relay.RDMA.Provider != target.RDMA.Provider {
		t.Errorf("the relay %+v does not fit the target %+v", relay, target)
	}
}
