// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/internal/similar"
	"github.com/zc-relay/zc-relay/internal/yamlerror"
)

// maxJob is the largest size of a job file, in bytes.
const maxJob = 1 << 20

// addJob adds --job, which sets the flags that the command line does not.
func addJob(cmd *cobra.Command) {
	var path string
	cmd.Flags().StringVar(&path, "job", "",
		"read flags that are not given from a YAML file: NAME: VALUE with names of flags, or of fio's options (bs, iodepth, rw, runtime, …)")
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if path == "" {
			return nil
		}
		if err := loadJob(cmd, path); err != nil {
			return fmt.Errorf("--job %s: %w", path, err)
		}
		return nil
	}
}

// loadJob sets the flags in a file. It reports all problems of the file.
func loadJob(cmd *cobra.Command, path string) error {
	content, err := files.Read(path, maxJob)
	if err != nil {
		return err
	}
	var options map[string]yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(content)).Decode(&options); err != nil &&
		!errors.Is(err, io.EOF) {
		const what = "it is not YAML with a NAME: VALUE on each line; fio's own job files are not"
		if line, text := yamlerror.Locate(content, err); line > 0 {
			return fmt.Errorf("line %d: %s: %s", line, what, text)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	names := slices.SortedFunc(maps.Keys(options), func(a, b string) int {
		return cmp.Or(options[a].Line-options[b].Line, options[a].Column-options[b].Column)
	})
	given := make(map[string]bool)
	for _, name := range names {
		if flag := cmd.Flags().Lookup(name); flag != nil {
			given[flag.Name] = flag.Changed
		}
	}
	var problems []error
	setBy := make(map[string]string) // the option that sets a flag
	for _, name := range names {
		node, flag := options[name], cmd.Flags().Lookup(name)
		if flag == nil || flag.Name == "job" {
			problems = append(problems, fmt.Errorf("line %d: %s is neither a flag of bench nor an option of fio that it knows%s",
				node.Line, name, suggest(cmd, name)))
			continue
		}
		if former, found := setBy[flag.Name]; found {
			problems = append(problems, fmt.Errorf("line %d: %s means the same as %s in line %d: give one of them",
				node.Line, name, former, options[former].Line))
			continue
		}
		if setBy[flag.Name] = name; given[flag.Name] {
			continue
		}
		if err := setOption(cmd, flag.Name, name, &node); err != nil {
			problems = append(problems, fmt.Errorf("line %d: %w", node.Line, err))
		}
	}
	return errors.Join(problems...)
}

// suggest returns ": did you mean NAME?" for a flag or an option of fio that is similar, or "".
func suggest(cmd *cobra.Command, name string) string {
	known := slices.AppendSeq(program.FlagNames(cmd), maps.Keys(fioNames))
	slices.Sort(known)
	best := similar.Closest(name, known)
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}

// setOption sets a flag to a value, or to each value of a list.
func setOption(cmd *cobra.Command, flag, name string, node *yaml.Node) error {
	if node.Kind == yaml.SequenceNode {
		for _, element := range node.Content {
			if err := setOption(cmd, flag, name, element); err != nil {
				return err
			}
		}
		return nil
	}
	if node.Kind != yaml.ScalarNode {
		return fmt.Errorf("%s is not a value or a list of values", name)
	}
	value := node.Value
	if _, err := strconv.ParseUint(value, 10, 32); err == nil && fioSeconds[name] {
		value += "s"
	}
	if err := cmd.Flags().Set(flag, value); err != nil {
		return fmt.Errorf("%s: %w", name, program.ExplainValue(err))
	}
	return nil
}
