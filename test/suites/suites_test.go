// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestEachFileBelongsToARule(t *testing.T) {
	files := trackedFiles(t)
	if _, err := suitesFor(files); err != nil {
		t.Error(err)
	}
	for _, r := range rules {
		if !slices.ContainsFunc(files, func(file string) bool {
			chosen, _ := ruleFor(file)
			return chosen == r
		}) {
			t.Errorf("the row of %s covers no file", r.path)
		}
	}
}

func trackedFiles(t *testing.T) []string {
	t.Helper()
	command := exec.Command("git", "ls-files", "-z")
	command.Dir = "../.."
	output, err := command.Output()
	if err != nil {
		t.Skipf("not a checkout: %v", err)
	}
	return strings.FieldsFunc(string(output), func(r rune) bool { return r == 0 })
}

func TestRulesNameSuites(t *testing.T) {
	var all []string
	for _, s := range suites {
		all = append(all, s.name)
	}
	if got := strings.Fields(everything); !slices.Equal(got, sortedLike(all, got)) ||
		len(got) != len(all) {
		t.Errorf("everything is %q, and the suites are %q", got, all)
	}
	for _, r := range rules {
		for _, name := range strings.Fields(r.suites) {
			if !slices.Contains(all, name) {
				t.Errorf("the row of %s names %q, which is no suite", r.path, name)
			}
		}
	}
}

// sortedLike returns the elements of order that names contains.
func sortedLike(names, order []string) []string {
	return slices.DeleteFunc(slices.Clone(order), func(name string) bool {
		return !slices.Contains(names, name)
	})
}

func TestStepsAreTargetsOfMake(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	steps := slices.Concat(gatePreparation, gateAlone, gateComputing, gateWaiting)
	for _, s := range suites {
		steps = append(steps, step{command: s.command})
	}
	for _, s := range steps {
		target := strings.Fields(s.command)[1]
		if !bytes.Contains(makefile, []byte("\n"+target+":")) {
			t.Errorf("%s: the Makefile has no such target", s.command)
		}
	}
}

func TestSuitesFor(t *testing.T) {
	for _, test := range []struct {
		name    string
		changed string
		want    string
	}{
		{"prose", "README.md CONTRIBUTING.md", ""},
		{"a page", "docs/guides/nbd.md", "pages"},
		{"a CRC of iWARP", "pkg/rdma/iwarp/crc.go",
			"budget arm64 siw providers simulation repeat verbs ends mutants"},
		{"verbs alone", "pkg/rdma/verbs/device_linux.go", "repeat verbs"},
		{"librbd", "pkg/volume/rbd/owner_linux.go", "ceph"},
		{"an NBD reply", "pkg/nbd/reply.go", "tools repeat ceph ends mutants"},
		{"the gateway and a package",
			"pkg/gateway/disk.go deploy/packages/postinstall.sh",
			"tools packages ublk repeat ceph ends mutants"},
		{"io_uring", "internal/iouring/ring_linux.go pkg/ublk/queue.go", "ublk repeat mutants"},
		{"an alert", "deploy/prometheus/alerts.yaml", "packages fleet"},
		{"the chart", "deploy/kubernetes/zc-relay/values.yaml", "kubernetes"},
		{"a library", "go.mod go.sum", everything},
		{"a mutant", "test/mutants/datapath.go", "mutants"},
		{"an end of a session", "pkg/relay/session_end.go pkg/target/session_end.go",
			"fleet siw ublk providers simulation repeat ceph verbs ends mutants"},
		{"a file that no row covers", "pkgs/x.go", "error"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := suitesFor(strings.Fields(test.changed))
			if err != nil {
				got = []string{"error"}
			}
			want := strings.Fields(test.want)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("suites for %s: %q, want %q", test.changed, got, want)
			}
		})
	}
}

// The emulation of libdoca is another module, whose tests are of providers in this one. The gate
// runs them always.
func TestTheAnnexIsTestedWithWhatItTests(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"test", "test-repeatedly"} {
		_, recipe, _ := strings.Cut(string(makefile), "\n"+target+": ## ")
		recipe, _, _ = strings.Cut(recipe, "\n\n")
		if !strings.Contains(recipe, "go -C libdoca test") ||
			!strings.Contains(recipe, " ./... ../...") {
			t.Errorf("make %s does not run the tests in libdoca: %s", target, recipe)
		}
	}
	for _, file := range []string{"libdoca/comch.c", "libdoca/test/chain/import_test.go",
		"pkg/doca/control.c", "pkg/comch/doca/endpoint.go", "pkg/rdma/doca/gid.go",
		"pkg/dma/doca/engine.go", "pkg/comch/emulated/server.go",
		"pkg/controlmsg/dialects/responder.go", "pkg/relay/dialect.go", "pkg/target/dialect.go"} {
		names, err := suitesFor([]string{file})
		if err != nil || !slices.Contains(names, "repeat") {
			t.Errorf("a change of %s runs %q, %v, and none that tests libdoca", file, names, err)
		}
	}
}

func TestTheFirstFailureIsPrintedLast(t *testing.T) {
	for _, lane := range []int{0, 1} {
		t.Run(fmt.Sprintf("lane %d", lane), func(t *testing.T) {
			lanes := [][]step{{{command: "echo passes"}}, {{command: "echo passes"}}}
			// The other lane waits until it is ended.
			lanes[lane] = append(lanes[lane], step{command: "echo the cause; exit 3"},
				step{command: "echo never"})
			lanes[1-lane] = append(lanes[1-lane], step{command: "echo waits; exec sleep 1000"})
			var w bytes.Buffer
			_, err := runAll(t.Context(), &lockedWriter{w: &w}, lanes...)
			if err == nil || !strings.Contains(err.Error(), "exit status 3\nrepeat it with: echo the cause") {
				t.Errorf("error: %v", err)
			}
			if lane == 1 && !strings.HasSuffix(w.String(), "the cause\n") {
				t.Errorf("the output does not end with that of the step that failed:\n%s", &w)
			}
			if strings.Contains(w.String(), "never") {
				t.Errorf("a step ran after one that failed:\n%s", &w)
			}
		})
	}
}

func TestASlowMachineExceedsNoShare(t *testing.T) {
	outcomes := func(seconds ...time.Duration) (done []outcome) {
		for i, budget := range []float64{0, 10, 100} {
			done = append(done, outcome{step: step{command: "a step", budget: budget},
				processors: seconds[i] * time.Second})
		}
		return done
	}
	for _, test := range []struct {
		name  string
		done  []outcome
		fails bool
	}{
		{"as budgeted", outcomes(500, 10, 100), false},
		{"a fast machine", outcomes(0, 5, 30), false},
		{"a slow machine", outcomes(0, 45, 400), false},
		{"a step at its limit", outcomes(0, 20, 100), false},
		{"a step that has grown", outcomes(0, 30, 100), true},
		{"a step that has grown on a slow machine", outcomes(0, 150, 400), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := checkShares(test.done); (err != nil) != test.fails {
				t.Errorf("checkShares: %v", err)
			}
		})
	}
}
