package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
	"github.com/tailscale/hujson"
)

// maxParameters is the largest accepted size of a parameter file in bytes.
const maxParameters = 1 << 20

// parameters is the content of a file of the DOCA argument parser: flags by their long names. Such
// files may have comments.
type parameters struct {
	General map[string]any `json:"doca_general_flags"`
	Program map[string]any `json:"doca_program_flags"`
	// DPDK holds flags for applications that use DPDK, which this one does not.
	DPDK map[string]any `json:"doca_dpdk_flags"`
}

// loadParameters sets the flags that are in the file and not on the command line.
func loadParameters(path string, flags *pflag.FlagSet) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxParameters+1))
	if err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	if len(text) > maxParameters {
		return fmt.Errorf("--json: %q is larger than %d bytes", path, maxParameters)
	}
	p, err := parseParameters(text)
	if err != nil {
		return fmt.Errorf("--json %q: %w", path, err)
	}
	if err := p.apply(flags); err != nil {
		return fmt.Errorf("--json %q: %w", path, err)
	}
	return nil
}

func parseParameters(text []byte) (parameters, error) {
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
func (p *parameters) apply(flags *pflag.FlagSet) error {
	given := make(map[string]bool)
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	device := given["pci-addr"] || given["dev-pci"]
	given["pci-addr"], given["dev-pci"] = device, device
	given["sdk-log-level"] = true // there is no SDK log
	given["json"] = false         // not allowed in files
	for _, section := range []map[string]any{p.General, p.Program} {
		for name, value := range section {
			if given[name] {
				continue
			}
			if err := set(flags, name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

func set(flags *pflag.FlagSet, name string, value any) error {
	if flags.Lookup(name) == nil || name == "json" {
		return fmt.Errorf("%q is not a flag of this program", name)
	}
	switch value.(type) {
	case string, json.Number, bool:
		return flags.Set(name, fmt.Sprint(value))
	}
	return fmt.Errorf("%q must be a string, a number, true or false", name)
}
