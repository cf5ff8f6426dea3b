// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/bench/internal/callgrind"
)

// budgetArchitecture is what the budget was measured on: other processors need other instructions.
const budgetArchitecture = "amd64"

// What decides whether a layer is within its budget.
const (
	// tolerance is how many times its budget a layer may cost. Compilers differ by some percent.
	tolerance = 1.2
	// negligible is a number of instructions that does not matter, although it may be many times a
	// small budget: one in a hundred of what all layers take.
	negligible = 40
	// budgetAttempts is how often a path is measured until all of its layers are within their
	// budgets. Polls that find less than a full batch, because the kernel has not delivered the
	// rest yet, can only add instructions, and valgrind may fail if the machine is so busy that a
	// handshake times out.
	budgetAttempts = 12
	// countedIOs is the number of IOs of one measurement.
	countedIOs = 3200
)

// layers are the parts of the chain, in the order in which a request meets them. A file belongs to
// the first layer with a prefix of its name.
var layers = []struct {
	name     string
	prefixes []string
}{
	{benchmarkLayer, []string{"pkg/datapath/chain_test.go", "pkg/datapath/relay_bench_test.go"}},
	{"comch", []string{"pkg/comch/"}},
	{"relay", []string{"pkg/datapath/relay_", "pkg/datapath/bounce.go",
		"pkg/datapath/throttle.go"}},
	{"target", []string{"pkg/datapath/target_"}},
	{"relay and target", []string{"pkg/datapath/"}},
	{"messages", []string{"pkg/iomsg/"}},
	{"rdma", []string{"pkg/rdma/"}},
	{"memory", []string{"pkg/memory/"}},
	{"copying", []string{"internal/blockcopy/"}}, // callgrind counts each byte of REP MOVSB
	{"polling", []string{"pkg/progress/"}},
	{"other packages", []string{""}},
}

const (
	modulePath = "github.com/zc-relay/zc-relay/"
	// benchmarkLayer is what the client of the benchmark does. It has no budget.
	benchmarkLayer = "the benchmark"
	// runtimeLayer is what the Go runtime and the standard library do. It is not judged: its locks
	// spin while other programs have the cores.
	runtimeLayer = "Go runtime"
	// budgetedCode is the benchmark whose instructions count: IOs through the lanes of relay and
	// target, and the providers around them, on one thread.
	budgetedCode = modulePath + "pkg/datapath.(*chainRig).transfer"
)

// budgetedPaths are benchmarks of pkg/datapath (BenchmarkChain), in the order of the table.
var budgetedPaths = []string{"read of registered memory", "pushed write", "read of shared memory",
	"write to shared memory"}

// budget holds the instructions for each IO, by path and layer.
type budget map[string]map[string]float64

//go:embed budget.json
var budgetFile []byte

// budgetCommand is "measure budget".
type budgetCommand struct {
	update string
}

func newBudgetCommand() *cobra.Command {
	c := &budgetCommand{}
	cmd := &cobra.Command{
		Use:   "budget",
		Short: "Count the instructions of each layer for an IO, and compare them with their budget",
		Long: `budget counts, with valgrind, the instructions that each layer of relay and target
executes for an IO of 4 KiB at depth 32. It fails if a layer costs over a fifth more than its
budget. It runs in the repository.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&c.update, "update", "",
		"file to write with what was measured, as the new budget (bench/measure/budget.json)")
	return cmd
}

func (c *budgetCommand) run(ctx context.Context, w io.Writer) error {
	if runtime.GOARCH != budgetArchitecture {
		return fmt.Errorf("the budget is for %s, not for %s", budgetArchitecture, runtime.GOARCH)
	}
	var allowed budget
	if err := json.Unmarshal(budgetFile, &allowed); err != nil {
		return fmt.Errorf("read the budget: %w", err)
	}
	directory, err := os.MkdirTemp("", "budget-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	program := filepath.Join(directory, "datapath.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-o", program,
		"./pkg/datapath")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the benchmarks of pkg/datapath: %w\n%s", err, output)
	}
	measured := make(budget)
	for _, path := range budgetedPaths {
		if measured[path], err = measurePath(ctx, program, path, allowed[path]); err != nil {
			return err
		}
	}
	if c.update != "" {
		return measured.write(c.update)
	}
	return measured.compare(w, allowed)
}

// measurePath returns the fewest instructions of each layer for an IO in several measurements. It
// stops as soon as every layer is within its budget.
func measurePath(ctx context.Context, program, path string, allowed map[string]float64) (
	map[string]float64, error,
) {
	fewest := make(map[string]float64)
	var failed error
	for range budgetAttempts {
		counts, err := callgrind.Count(ctx, budgetedCode, program, "-test.run", "^$",
			"-test.bench", "^BenchmarkChain$/^"+strings.ReplaceAll(path, " ", "_")+"$",
			"-test.benchtime", fmt.Sprintf("%dx", countedIOs))
		if err != nil {
			failed = fmt.Errorf("%s: %w", path, err)
			continue
		}
		total := make(map[string]float64)
		for place, n := range counts {
			total[layerOf(place)] += float64(n) / countedIOs
		}
		delete(total, benchmarkLayer)
		exceeded := false
		for layer, n := range total {
			if least, found := fewest[layer]; !found || n < least {
				fewest[layer] = n
			}
			exceeded = exceeded || exceeds(layer, fewest[layer], allowed[layer])
		}
		if !exceeded {
			break
		}
	}
	if len(fewest) == 0 {
		return nil, failed
	}
	return fewest, nil
}

func exceeds(layer string, measured, allowed float64) bool {
	return layer != runtimeLayer && measured > max(tolerance*allowed, allowed+negligible)
}

// layerOf returns the layer of a place. Code of the standard library that was inlined belongs to
// the function that uses it.
func layerOf(p callgrind.Place) string {
	name, found := strings.CutPrefix(p.File, "./"+modulePath)
	if !found {
		if name, found = strings.CutPrefix(p.Function, modulePath); !found {
			return runtimeLayer
		}
		if base := strings.LastIndexByte(name, '/') + 1; base > 0 {
			packageName, _, _ := strings.Cut(name[base:], ".")
			name = name[:base] + packageName + "/"
		}
	}
	for _, l := range layers {
		for _, prefix := range l.prefixes {
			if strings.HasPrefix(name, prefix) {
				return l.name
			}
		}
	}
	return runtimeLayer
}

// compare prints a table, and fails if a layer costs more than its budget allows.
func (measured budget) compare(w io.Writer, allowed budget) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "instructions for each IO\tmeasured\tbudget\tratio\t")
	var errs []error
	for _, path := range budgetedPaths {
		fmt.Fprintf(table, "%s\t\t\t\t\n", path)
		for _, layer := range layersOf(measured[path], allowed[path]) {
			m, a := measured[path][layer], allowed[path][layer]
			fmt.Fprintf(table, "%s\t%.0f\t%.0f\t%.2f\t\n", layer, m, a, m/max(a, 1))
			if exceeds(layer, m, a) {
				errs = append(errs, fmt.Errorf("%s: %s takes %.0f instructions, over %.0f %% more than %.0f",
					path, layer, m, (tolerance-1)*100, a))
			}
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if errs != nil {
		return fmt.Errorf("%w: make it cheaper, or raise the budget with --update and say why",
			errors.Join(errs...))
	}
	return nil
}

// layersOf returns all names in both, in the order of layers.
func layersOf(a, b map[string]float64) []string {
	position := func(name string) int {
		for i := range layers {
			if layers[i].name == name {
				return i
			}
		}
		return len(layers)
	}
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.SortedFunc(maps.Keys(all),
		func(a, b string) int { return cmp.Compare(position(a), position(b)) })
}

func (measured budget) write(path string) error {
	for _, counts := range measured {
		for layer := range counts {
			counts[layer] = math.Ceil(counts[layer])
		}
	}
	content, err := json.MarshalIndent(measured, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}
