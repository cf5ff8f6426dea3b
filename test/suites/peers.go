// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// suite is a complete test against something real, or a long repetition.
type suite struct {
	name    string
	command string
}

// suites are in the order in which peers runs them: the quickest first.
var suites = []suite{
	{"kubernetes", "make check-kubernetes"},
	{"budget", "make check-budget"},
	{"tools", "make test-tools"},
	{"pages", "make test-pages"},
	{"arm64", "make test-arm64"},
	{"bench", "make bench-once"},
	{"packages", "make test-packages"},
	{"sanitizers", "make test-sanitizers"},
	{"fleet", "make fleet"},
	{"devices", "make test-devices"},
	{"encryption", "make test-encryption"},
	{"siw", "make test-siw"},
	{"ublk", "make test-ublk"},
	{"providers", "make test-providers"},
	{"simulation", "make simulate SEEDS=10000"},
	{"repeat", "make test-repeatedly"},
	{"ceph", "make test-ceph"},
	{"verbs", "make test-verbs"},
	{"ends", "make test-ends"},
	{"mutants", "make mutants"},
}

// rule says which suites cover the files below a folder, or a single file.
type rule struct {
	path   string
	suites string // names, separated by spaces
}

const (
	everything = "kubernetes budget tools pages arm64 bench packages sanitizers fleet devices " +
		"encryption siw ublk providers simulation repeat ceph verbs ends mutants"
	// chain is what runs target, relay, and client together over real networks.
	chain = "siw ublk providers simulation repeat ceph verbs ends mutants"
)

// rules has a row for each folder with code. The row with the longest path that fits decides.
var rules = []rule{
	{"go.mod", everything},
	{"go.sum", everything},
	{"Makefile", everything},
	{".ci", ""}, // the gate itself
	{".github", ""},
	{".golangci.yml", ""},
	{"docs", "pages"},
	{"proto", "repeat"},
	{"buf.yaml", ""},
	{"buf.gen.yaml", ""},
	{"deploy", "packages"},
	{"deploy/prometheus", "packages fleet"},
	{"deploy/kubernetes", "kubernetes"},
	{"deploy/config", "kubernetes pages packages"},
	{"deploy/examples", "kubernetes packages"},
	{"tools", "kubernetes packages"},
	{"tools/site", "pages"},
	{"scripts", "packages arm64"},
	{"scripts/build-ceph.sh", "ceph packages"},
	{"scripts/simulate.sh", "simulation"},
	{"scripts/test-arm64.sh", "arm64"},
	{"scripts/fuzz.sh", ""},
	{"scripts/add-license-headers.sh", ""},
	{"scripts/release.sh", ""},
	{"scripts/sign-release.sh", ""},
	{"scripts/check-tree.sh", ""},
	{"scripts/check-hardening.sh", "packages"},
	{"scripts/check-english.sh", ""},
	{"scripts/deadcode.sh", ""},
	{"scripts/heavy-english.txt", ""},
	{"scripts/demo.sh", ""},
	{"scripts/bench-scrape.sh", ""},
	{"bench", "bench budget"},
	{"examples", "repeat"},

	{"cmd", "tools packages fleet repeat"},
	{"cmd/dma-copy", "packages repeat"},
	{"cmd/initiator", "tools packages fleet ublk ceph repeat mutants"},
	{"cmd/internal", "tools packages fleet repeat"},
	{"cmd/internal/config", "kubernetes tools packages fleet repeat"},
	{"cmd/internal/providers", "packages siw providers verbs repeat"},

	{"internal", "repeat mutants"},
	{"internal/blockcopy", "arm64 budget repeat mutants"},
	{"internal/iouring", "ublk repeat"},
	{"internal/linux", "arm64 repeat providers mutants"},
	{"internal/prefetch", "arm64 budget repeat"},
	{"internal/rangelock", "tools ublk repeat ends mutants"},
	{"internal/rdmadevice", "verbs repeat"},

	{"libdoca", "arm64 packages sanitizers repeat verbs mutants"},
	{"libdoca/README.md", ""},
	{"libdoca/cmd", "bench repeat verbs"},
	{"libdoca/examples", "packages repeat"},
	{"libdoca/packages", "packages"},
	{"libdoca/scripts", "packages arm64 repeat"},
	{"libdoca/test", "arm64 providers repeat mutants"},
	{"libzcclient", "packages tools repeat"},
	{"libzcclient/README.md", ""},
	{"libzcclient/packages", "packages"},
	{"pkg", chain},
	{"pkg/admin", "tools packages fleet repeat"},
	{"pkg/blockio", "tools ublk ceph repeat ends mutants"},
	{"pkg/client", "budget tools " + chain},
	{"pkg/client/queuetest", "tools repeat mutants"},
	{"pkg/comch", "arm64 budget providers simulation repeat verbs ends mutants"},
	{"pkg/comch/contexts", "arm64 providers repeat"},
	{"pkg/controlmsg", "arm64 " + chain},
	{"pkg/datapath", "budget bench " + chain},
	{"pkg/dma", "arm64 repeat providers mutants"},
	{"pkg/doca", "arm64 repeat verbs"},
	{"pkg/iomsg", "arm64 budget " + chain},
	{"pkg/lease", chain},
	{"pkg/mutualtls", "fleet " + chain},
	{"pkg/relay", "fleet " + chain},
	{"pkg/target", "fleet " + chain},
	{"pkg/memory", "arm64 budget " + chain},
	{"pkg/gateway", "tools packages ublk ceph repeat ends mutants"},
	{"pkg/nbd", "tools ceph repeat ends mutants"},
	{"pkg/progress", "arm64 budget " + chain},
	{"pkg/rdma", "arm64 budget siw providers simulation repeat verbs ends mutants"},
	{"pkg/rdma/doca", "providers repeat mutants"},
	{"pkg/rdma/shm", "budget providers simulation repeat mutants"},
	{"pkg/rdma/verbs", "verbs repeat"},
	{"pkg/ublk", "ublk repeat mutants"},
	{"pkg/volume", "tools fleet devices " + chain},
	{"pkg/volume/rbd", "ceph"},

	{"test/api", ""},
	{"test/ceph", "ceph"},
	{"test/chain", "providers repeat"},
	{"test/devices", "devices"},
	{"test/e2e", "tools ublk ceph verbs providers repeat"},
	{"test/encryption", "encryption"},
	{"test/ends", "ends"},
	{"test/fleet", "fleet"},
	{"test/hostile-comch", "repeat"},
	{"test/mutants", "mutants"},
	{"test/packages", "packages"},
	{"test/pages", "pages"},
	{"test/resources", "repeat"},
	{"test/simulation", "simulation mutants"},
	{"test/siw", "devices encryption siw ublk verbs"},
	{"test/smoke", ""}, // parts of the gate
	{"test/suites", ""},
	{"test/ublk", "ublk"},
	{"test/verbs", "verbs"},
	{"test/verbs/chain.sh", "devices encryption ublk verbs"},
}

// ruleFor returns the rule of a file.
func ruleFor(file string) (rule, bool) {
	var best rule
	found := false
	for _, r := range rules {
		fits := file == r.path || strings.HasPrefix(file, r.path+"/")
		if fits && len(r.path) >= len(best.path) {
			best, found = r, true
		}
	}
	return best, found
}

// isText reports whether a file is documentation of the whole project, which no suite covers.
func isText(file string) bool {
	return !strings.Contains(file, "/") && (strings.HasSuffix(file, ".md") ||
		file == "LICENSE" || file == ".gitignore" || file == ".editorconfig")
}

// suitesFor returns the names of the suites that cover the changed files, in the order of suites.
func suitesFor(changed []string) ([]string, error) {
	wanted := map[string]bool{}
	for _, file := range changed {
		r, found := ruleFor(file)
		if !found && !isText(file) {
			return nil, fmt.Errorf("%s: no row of test/suites/peers.go covers it: add one", file)
		}
		for name := range strings.FieldsSeq(r.suites) {
			wanted[name] = true
		}
	}
	names := []string{}
	for _, s := range suites {
		if wanted[s.name] {
			names = append(names, s.name)
		}
	}
	return names, nil
}

// stepsOf returns the steps that run the named suites, or all suites if there are no names.
func stepsOf(names []string) ([]step, error) {
	for _, name := range names {
		if !slices.ContainsFunc(suites, func(s suite) bool { return s.name == name }) {
			return nil, fmt.Errorf("no suite has the name %q; there are: %s", name, everything)
		}
	}
	var steps []step
	for _, s := range suites {
		if len(names) == 0 || slices.Contains(names, s.name) {
			steps = append(steps, step{command: s.command})
		}
	}
	return steps, nil
}
