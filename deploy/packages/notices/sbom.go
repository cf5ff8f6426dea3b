// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// subject is what a bill of materials is about.
type subject struct {
	binary, name, version string
}

// The parts of a bill of materials in CycloneDX 1.5 (https://cyclonedx.org/docs/1.5/json/) that a
// program has.
type (
	bill struct {
		Schema       string       `json:"$schema"`
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		SerialNumber string       `json:"serialNumber,omitempty"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []part       `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string `json:"timestamp,omitempty"`
		Component part   `json:"component"`
	}
	part struct {
		Type        string     `json:"type"`
		Ref         string     `json:"bom-ref"`
		Name        string     `json:"name"`
		Version     string     `json:"version,omitempty"`
		Description string     `json:"description,omitempty"`
		Hashes      []hash     `json:"hashes,omitempty"`
		Licenses    []license  `json:"licenses,omitempty"`
		PURL        string     `json:"purl,omitempty"`
		Properties  []property `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	license struct {
		Expression string `json:"expression"` // of SPDX
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn"`
	}
)

// ownModule begins the paths of this project's modules.
const ownModule = "github.com/zc-relay/zc-relay"

// newBill returns the bill of materials of a program or library: what the Go linker has recorded in
// it, and the libraries of the system that it needs to start. components are what it is said to
// link. The bill has no date or serial number that two builds would not share.
func newBill(s subject, components []component) (*bill, error) {
	content, err := os.ReadFile(s.binary)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.ReadFile(s.binary)
	if err != nil {
		return nil, fmt.Errorf("read what %s was built of: %w", s.binary, err)
	}
	sum := sha256.Sum256(content)
	main := part{Type: "application", Ref: s.name, Name: s.name, Version: s.version,
		Hashes:   []hash{{"SHA-256", hex.EncodeToString(sum[:])}},
		Licenses: []license{{"Apache-2.0"}}, PURL: packageURL("generic", s.name, s.version)}
	if strings.HasSuffix(s.binary, ".so") {
		main.Type = "library"
	}
	b := &bill{Schema: "http://cyclonedx.org/schema/bom-1.5.schema.json", Format: "CycloneDX",
		SpecVersion: "1.5", Version: 1, Metadata: metadata{Component: main}}
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("SOURCE_DATE_EPOCH=%q: %w", text, err)
		}
		b.Metadata.Timestamp = time.Unix(seconds, 0).UTC().Format(time.RFC3339)
	}
	if b.Components, err = partsOf(info, components); err != nil {
		return nil, fmt.Errorf("%s: %w", s.binary, err)
	}
	libraries, err := libraries(s.binary)
	if err != nil {
		return nil, fmt.Errorf("find the libraries of %s: %w", s.binary, err)
	}
	b.Components = append(b.Components, libraries...)
	depends := dependency{Ref: main.Ref}
	for _, c := range b.Components {
		depends.DependsOn = append(depends.DependsOn, c.Ref)
	}
	b.Dependencies = []dependency{depends}
	text, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(text)
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // a UUID of version 8: what its maker likes
	b.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10],
		id[10:16])
	return b, nil
}

// partsOf returns the standard library and the modules of others that the linker has recorded. It
// fails unless they are the components.
func partsOf(info *buildinfo.BuildInfo, components []component) ([]part, error) {
	version := strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go")
	sums := map[string]string{"Go " + version: ""}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Path != ownModule && !strings.HasPrefix(m.Path, ownModule+"/") &&
			!strings.HasPrefix(m.Path, "..") {
			sums[m.Path+" "+m.Version] = m.Sum
		}
	}
	var parts []part
	for _, c := range components {
		sum, ok := sums[c.name]
		if !ok {
			return nil, fmt.Errorf("%s is not linked, but its license is listed: call notices "+
				"with the tags and the architecture of the build", c.name)
		}
		delete(sums, c.name)
		expression, err := c.expression()
		if err != nil {
			return nil, err
		}
		name, version, _ := strings.Cut(c.name, " ")
		if name == "Go" {
			name = "std"
		}
		p := part{Type: "library", Name: name, Version: version, Licenses: []license{{expression}},
			PURL: packageURL("golang", strings.ToLower(name), version)}
		if p.Ref = p.PURL; sum != "" {
			p.Properties = []property{{"go:sum", sum}}
		}
		parts = append(parts, p)
	}
	for name := range sums {
		return nil, fmt.Errorf("%s is linked, but its license is not listed: call notices with "+
			"the tags and the architecture of the build", name)
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.Ref, b.Ref) })
	return parts, nil
}

// libraries returns the libraries of the system that a file needs.
func libraries(path string) ([]part, error) {
	file, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	names, err := file.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	parts := make([]part, len(names))
	for i, name := range names {
		parts[i] = part{Type: "library", Ref: name, Name: name,
			Description: "of the system, not in the package"}
	}
	return parts, nil
}

// packageURL identifies a package (https://github.com/package-url/purl-spec).
func packageURL(kind, name, version string) string {
	return "pkg:" + kind + "/" + name + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// write writes a bill as JSON.
func (b *bill) write(path string) error {
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
