// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m).Run()) }

// Nothing that a program may link lacks a license, or has an unknown one.
func TestEveryProgramLinksOnlyWhatHasAKnownLicense(t *testing.T) {
	for _, build := range []struct {
		directory, tags, architecture, program string
		cgo                                    bool
	}{
		{"../../..", "netgo,osusergo", "amd64", "./cmd/...", true},
		{"../../..", "netgo,osusergo", "arm64", "./cmd/...", true},
		{"../../..", "ceph,netgo,osusergo", "amd64", "./cmd/target", true},
		{"../../..", "", "arm64", "./cmd/...", false},
		{"../../../libdoca", "libdoca_shared,netgo,osusergo", "amd64", "./shared", true},
		{"../../..", "netgo,osusergo", "amd64", "./libzcclient/core", true},
	} {
		components, err := linked(build.directory, build.tags, build.architecture, build.cgo,
			[]string{build.program})
		if err != nil || len(components) < 5 {
			t.Fatalf("%+v links %v, %v", build, components, err)
		}
		for _, c := range components {
			if expression, err := c.expression(); err != nil || expression == "" {
				t.Errorf("%+v: %q, %v", build, expression, err)
			}
		}
	}
}

func TestTheBillOfAProgramIsWhatTheLinkerHasRecorded(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	components, err := linked("../../..", "", runtime.GOARCH, false, []string{"./cmd/dma-copy"})
	if err != nil {
		t.Fatal(err)
	}
	s := subject{binary: testkit.Plain.Program(t, "dma-copy"), name: "zc-relay-dma-copy",
		version: "1.0.0+2.g"}
	var texts [2][]byte
	for i := range texts {
		b, err := newBill(s, components)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "bill")
		if err := b.write(path); err != nil {
			t.Fatal(err)
		}
		if texts[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(texts[0], texts[1]) {
		t.Error("two bills of a program differ")
	}
	var b bill
	if err := json.Unmarshal(texts[0], &b); err != nil {
		t.Fatal(err)
	}
	main := b.Metadata.Component
	if b.Metadata.Timestamp != "2023-11-14T22:13:20Z" ||
		main.PURL != "pkg:generic/zc-relay-dma-copy@1.0.0%2B2.g" || len(main.Hashes) != 1 ||
		len(b.Dependencies[0].DependsOn) != len(b.Components) {
		t.Errorf("the bill is %s", texts[0])
	}
	found := slices.ContainsFunc(b.Components, func(p part) bool {
		return p.Name == "github.com/spf13/cobra" && p.Licenses[0].Expression == "Apache-2.0" &&
			strings.HasPrefix(p.PURL, "pkg:golang/github.com/spf13/cobra@v1") &&
			strings.HasPrefix(p.Properties[0].Value, "h1:")
	})
	if !found {
		t.Errorf("the bill lacks cobra: %s", texts[0])
	}
}

func TestABillThatDiffersFromTheLicensesIsNone(t *testing.T) {
	root := t.TempDir()
	text := "Permission is hereby granted, free of charge, to any person\nobtaining a copy"
	if err := os.WriteFile(filepath.Join(root, "LICENSE"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	of := func(name string) component {
		return component{name: name, root: root, directories: []string{root}}
	}
	info := &debug.BuildInfo{GoVersion: "go1.26.1 X:none", Deps: []*debug.Module{
		{Path: "example.org/a", Version: "v1.0.0", Sum: "h1:x"},
		{Path: ownModule, Version: "(devel)"},
	}}
	ownGo := of("Go 1.26.1")
	for _, c := range []struct {
		components []component
		want       string
	}{
		{[]component{ownGo, of("example.org/a v1.0.0")}, ""},
		{[]component{ownGo}, "example.org/a v1.0.0 is linked, but its license is not listed"},
		{[]component{ownGo, of("example.org/a v1.0.0"), of("example.org/b v1.0.0")},
			"example.org/b v1.0.0 is not linked"},
		{[]component{ownGo, of("example.org/a v1.0.1")}, "example.org/a v1.0.1 is not linked"},
	} {
		parts, err := partsOf(info, c.components)
		switch {
		case c.want == "" && (err != nil || len(parts) != 2 || parts[1].Name != "std" ||
			parts[0].Licenses[0].Expression != "MIT"):
			t.Errorf("the parts are %+v, %v", parts, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

func TestLicensesAreKnownByTheirText(t *testing.T) {
	const bsd = "Redistribution and use in source\n and binary forms, with or without"
	for text, want := range map[string]string{
		bsd:                                "BSD-2-Clause",
		bsd + "\n* Neither the  name of X": "BSD-3-Clause",
		"All rights reserved.":             "",
		"Permission is hereby granted, free of charge, to any person obtaining a copy. " +
			"Licensed under the Apache License, Version 2.0": "Apache-2.0 MIT",
		"GNU GENERAL PUBLIC LICENSE": "",
	} {
		if got := strings.Join(licensesIn(text), " "); got != want {
			t.Errorf("%.40q is under %q, want %q", text, got, want)
		}
	}
}
