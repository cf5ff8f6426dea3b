// SPDX-License-Identifier: Apache-2.0

package argp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/pflag"
	"github.com/tailscale/hujson"
)

// maxFile is the largest accepted size of a JSON file in bytes.
const maxFile = 1 << 20

const (
	jsonFlag    = "json"
	dpdkSection = "doca_dpdk_flags"
)

// parameters is the content of a JSON file: flags by their long names. Such files may have
// comments.
type parameters struct {
	General map[string]any `json:"doca_general_flags"`
	Program map[string]any `json:"doca_program_flags"`
	DPDK    map[string]any `json:"doca_dpdk_flags"`
}

// loadFile sets the flags that are in the file and not on the command line. It reports whether the
// file has DPDK flags, which it ignores.
func loadFile(path string, flags *pflag.FlagSet, synonyms [][]string) (ignored bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("--json: %w", err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return false, fmt.Errorf("--json: %w", err)
	}
	if len(text) > maxFile {
		return false, fmt.Errorf("--json: %q is larger than %d bytes", path, maxFile)
	}
	p, err := parse(text)
	if err == nil {
		err = p.apply(flags, synonyms)
	}
	if err != nil {
		return false, fmt.Errorf("--json %q: %w", path, err)
	}
	return len(p.DPDK) > 0, nil
}

func parse(text []byte) (parameters, error) {
	var p parameters
	standard, err := hujson.Standardize(text)
	if err != nil {
		return p, err
	}
	decoder := json.NewDecoder(bytes.NewReader(standard))
	decoder.UseNumber()
	decoder.DisallowUnknownFields()
	return p, decoder.Decode(&p)
}

// apply sets flags, except those given on the command line.
func (p *parameters) apply(flags *pflag.FlagSet, synonyms [][]string) error {
	given := make(map[string]bool)
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	for _, names := range synonyms {
		if slices.ContainsFunc(names, func(name string) bool { return given[name] }) {
			for _, name := range names {
				given[name] = true
			}
		}
	}
	for _, section := range []map[string]any{p.General, p.Program} {
		for _, name := range slices.Sorted(maps.Keys(section)) {
			flag := flags.Lookup(name)
			if flag == nil || flag.Name == jsonFlag {
				return fmt.Errorf("%q is not a flag of this program", name)
			}
			if given[flag.Name] {
				continue
			}
			if err := set(flags, name, section[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// set sets a flag. A list gives a repeatable flag several times.
func set(flags *pflag.FlagSet, name string, value any) error {
	values, isList := value.([]any)
	if !isList {
		values = []any{value}
	}
	for _, v := range values {
		switch v.(type) {
		case string, json.Number, bool:
		default:
			return fmt.Errorf("%q must be a string, a number, true or false, or a list of them",
				name)
		}
		if err := flags.Set(name, fmt.Sprint(v)); err != nil {
			return err
		}
	}
	return nil
}
