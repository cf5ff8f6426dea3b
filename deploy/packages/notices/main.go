// SPDX-License-Identifier: Apache-2.0

// Command notices prints the licenses of everything that others have written and that a program
// contains: the Go runtime and standard library, and each module of which a package is linked.
//
//	notices [-C DIRECTORY] [-tags TAGS] [-arch ARCHITECTURE] [-cgo]
//	    [-sbom FILE -binary FILE -name NAME -version VERSION] PACKAGE...
//
// With -sbom it also writes a bill of materials of the binary, and fails unless that links exactly
// what the licenses are for. It needs no network, only the module cache of the build.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

func main() {
	directory := flag.String("C", ".", "directory of the module")
	tags := flag.String("tags", "", "build tags of the program")
	architecture := flag.String("arch", runtime.GOARCH, "architecture of the program")
	cgo := flag.Bool("cgo", false, "the program is built with cgo")
	sbom := flag.String("sbom", "", "file for the bill of materials (CycloneDX)")
	var s subject
	flag.StringVar(&s.binary, "binary", "", "the program or library that the bill is for")
	flag.StringVar(&s.name, "name", "", "name of its package")
	flag.StringVar(&s.version, "version", "", "version of its package")
	flag.Parse()
	if flag.NArg() == 0 || (*sbom != "") != (s.binary != "") {
		flag.Usage()
		os.Exit(2)
	}
	components, err := linked(*directory, *tags, *architecture, *cgo, flag.Args())
	if err == nil {
		err = write(os.Stdout, components)
	}
	if err == nil && *sbom != "" {
		var b *bill
		if b, err = newBill(s, components); err == nil {
			err = b.write(*sbom)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

// component is what has licenses of its own.
type component struct {
	name string
	root string // directory of its files
	// directories are those below root whose content is linked.
	directories []string
}

// linked returns the code of others, with the standard library, that packages of the module in
// directory link.
func linked(directory, tags, architecture string, cgo bool, packages []string) (
	[]component, error) {
	list := exec.Command("go", slices.Concat([]string{"-C", directory, "list", "-deps", "-tags", tags,
		"-json=Dir,Standard,Module"}, packages)...)
	list.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+architecture, "CGO_ENABLED=0")
	if cgo {
		list.Env = append(list.Env, "CGO_ENABLED=1")
	}
	list.Stderr = os.Stderr
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list what %s links: %w", strings.Join(packages, " "), err)
	}
	root, err := exec.Command("go", "env", "GOROOT", "GOVERSION").Output()
	if err != nil {
		return nil, fmt.Errorf("find the Go toolchain: %w", err)
	}
	goRoot, goVersion, _ := strings.Cut(strings.TrimSpace(string(root)), "\n")
	byName := make(map[string]*component)
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p struct {
			Dir      string
			Standard bool
			Module   *struct {
				Path, Version, Dir string
				Main               bool
			}
		}
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the output of go list: %w", err)
		}
		c := component{name: "Go " + strings.TrimPrefix(goVersion, "go"), root: goRoot}
		switch {
		case p.Standard:
			p.Dir = goRoot // one license is for all packages
		case p.Module == nil || p.Module.Main:
			continue
		default:
			c = component{name: p.Module.Path + " " + p.Module.Version, root: p.Module.Dir}
		}
		if byName[c.name] == nil {
			byName[c.name] = &c
		}
		known := byName[c.name]
		known.directories = append(known.directories, p.Dir)
	}
	var all []component
	for _, c := range byName {
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b component) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

// write prints the notices of components.
func write(w io.Writer, components []component) error {
	var b bytes.Buffer
	b.WriteString("This package contains software of others, under the licenses below.\n")
	for _, c := range components {
		files, err := c.notices()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "\n%s\n%s\n", strings.Repeat("=", 80), c.name)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			name, err := filepath.Rel(c.root, file)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			fmt.Fprintf(&b, "\n--- %s\n\n%s\n", name, bytes.TrimSpace(text))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

var (
	noticeFile  = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright|notice|patents)([.-].*)?$`)
	licenseFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying)`)
	sourceFile  = regexp.MustCompile(`\.(go|s|c|h|sh)$`)
)

// notices returns the files with licenses and notices in the directories of what is linked, and in
// those above them, sorted. Nobody may distribute what has no license.
func (c *component) notices() (files []string, err error) {
	seen, licenses := make(map[string]bool), 0
	for _, directory := range c.directories {
		for ; !seen[directory]; directory = filepath.Dir(directory) {
			seen[directory] = true
			entries, err := os.ReadDir(directory)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			for _, entry := range entries {
				name := entry.Name()
				if entry.IsDir() || !noticeFile.MatchString(name) || sourceFile.MatchString(name) {
					continue
				}
				files = append(files, filepath.Join(directory, name))
				if directory == c.root && licenseFile.MatchString(name) {
					licenses++
				}
			}
			if directory == c.root {
				break
			}
		}
	}
	if licenses == 0 {
		return nil, fmt.Errorf("%s: %s has no license", c.name, c.root)
	}
	slices.Sort(files)
	return files, nil
}
