// SPDX-License-Identifier: Apache-2.0

// Command site renders the documentation as a site of static files that need no server and load
// nothing from elsewhere.
//
// Its navigation is docs/README.md: each heading is a section, and each link in it a page. Links
// between pages become links of the site, and links to other files of the repository lead to its
// public copy. A link that leads nowhere fails the build.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	source := flag.String("source", "../..", "the repository")
	output := flag.String("output", "../../bin/site", "directory of the site; what is in it goes")
	version := flag.String("version", "", "version of the documents, at the end of each page")
	flag.Parse()
	if err := build(*source, *output, *version); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func build(source, output, version string) error {
	tree, err := load(source)
	if err != nil {
		return err
	}
	if err := errors.Join(tree.faults...); err != nil {
		return err
	}
	if err := os.RemoveAll(output); err != nil {
		return err
	}
	return tree.write(output, version)
}
