// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"regexp"
	"strings"
	"testing"
)

// The table of listeners names settings that exist, and every setting that opens a listener.
func TestTheTableOfListenersIsTrue(t *testing.T) {
	text := string(read(t, docs+"guides/security.md"))
	_, table, found := strings.Cut(text, "## What each listener lets whom do")
	if !found {
		t.Fatal("guides/security.md has no table of listeners")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	guide, gateway := string(read(t, docs+"reference/configuration.md")),
		string(read(t, docs+"guides/nbd.md"))+string(read(t, docs+"guides/dma.md"))
	named := make(map[string]bool)
	setting := regexp.MustCompile("`([a-z]+\\.[a-z_]+|--[a-z-]+)`")
	for _, match := range setting.FindAllStringSubmatch(table, -1) {
		name := match[1]
		named[name] = true
		if !strings.Contains(guide, "`"+name+"`") && !strings.Contains(guide, "[]."+name+"`") &&
			!strings.Contains(gateway, name) {
			t.Errorf("the table of listeners has %s, which is no setting", name)
		}
	}
	for _, name := range []string{"listen.address", "listen.rdma_address", "operations.listen",
		"operations.admin", "--socket", "--listen", "access.users", "access.any_user",
		"operations.core_dumps"} {
		if !named[name] {
			t.Errorf("the table of listeners lacks %s", name)
		}
	}
	listens := regexp.MustCompile("(?m)^\\| `([a-z_.]*(?:listen|address|admin))` \\|")
	for _, match := range listens.FindAllStringSubmatch(guide, -1) {
		if name := match[1]; !named[name] {
			t.Errorf("the table of listeners lacks %s", name)
		}
	}
}
