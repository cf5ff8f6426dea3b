// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestAMistakeInHundredsOfChannelsIsShownTenTimes(t *testing.T) {
	var all Problems
	for i := range 500 {
		all = append(all, Problem{Key: fmt.Sprintf("channels.%d.volum", i), Text: "unknown key"})
	}
	lines := strings.Split(all.Error(), "\n")
	if len(lines) != 11 || lines[9] != "channels.9.volum: unknown key" ||
		lines[10] != `and 490 more: "config check" lists more` {
		t.Errorf("%q", lines)
	}
	lines = strings.Split(all.list(), "\n")
	if len(lines) != 51 ||
		lines[50] != "and 450 more: correct these first; --output json lists all" {
		t.Errorf("%q", lines)
	}
	if lines := strings.Split(all[:10].Error(), "\n"); len(lines) != 10 {
		t.Errorf("%q", lines)
	}
}
