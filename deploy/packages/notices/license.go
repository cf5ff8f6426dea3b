// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// licenseMarks are sentences by which licenses are known, in lower case and with single spaces.
// Nobody has to publish the source of what links software under one of them.
var licenseMarks = []struct{ id, sentence string }{
	{"Apache-2.0", "apache license version 2.0, january 2004"},
	{"Apache-2.0", "licensed under the apache license, version 2.0"},
	{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software for any purpose"},
	{"ISC", "permission to use, copy, modify, and distribute this software for any purpose"},
	{"BSD-3-Clause", "neither the name of"},
	{"BSD-2-Clause", "redistribution and use in source and binary forms"}, // after BSD-3-Clause
	{"MPL-2.0", "mozilla public license version 2.0 ="},
	{"MPL-2.0", "mozilla public license, version 2.0 1. definitions"},
	{"Unlicense", "this is free and unencumbered software released into the public domain"},
	{"CC0-1.0", "cc0 1.0 universal"},
}

// licensesIn returns the identifiers of the licenses in a text, as SPDX has them.
func licensesIn(text string) (ids []string) {
	text = strings.Join(strings.Fields(strings.ToLower(text)), " ")
	for _, m := range licenseMarks {
		if !strings.Contains(text, m.sentence) || slices.Contains(ids, m.id) ||
			m.id == "BSD-2-Clause" && slices.Contains(ids, "BSD-3-Clause") {
			continue
		}
		ids = append(ids, m.id)
	}
	return ids
}

// expression returns the licenses of a component as SPDX writes them. A user has to heed all of
// them. It fails if one is not among licenseMarks.
func (c *component) expression() (string, error) {
	files, err := c.notices()
	if err != nil {
		return "", err
	}
	var all []string
	for _, file := range files {
		if !licenseFile.MatchString(filepath.Base(file)) {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("%s: %w", c.name, err)
		}
		ids := licensesIn(string(text))
		if len(ids) == 0 {
			return "", fmt.Errorf("%s: the license in %s is not known: if programs may link what "+
				"has it, add a sentence of it to licenseMarks in deploy/packages/notices/license.go",
				c.name, file)
		}
		all = append(all, ids...)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " AND "), nil
}
