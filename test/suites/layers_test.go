// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/zc-relay/zc-relay/"

// layer is a group of packages, and says what they may import of this module.
type layer struct {
	name string
	// packages are folders, with what is below them, except for the folders of other layers.
	packages string
	// imports names layers. The packages of a layer may also import each other.
	imports string
}

const (
	base  = "status leaves foundation "
	seams = "comch rdma dma volume "
	hooks = "comch-hook rdma-hook volume-hook control-hook "
	roles = "client relay target "
	// commands is what every command may use: no provider, and no configuration.
	commands = base + seams + hooks + roles + "epochs blockio front-ends admin faults engine control gateway " +
		"providers documents commands "
)

// layers is the architecture. Each layer imports only layers above it.
//
// Files of all build tags count, and packages of test support. Files named _test.go may import
// anything.
var layers = []layer{
	{"status", "pkg/status", ""},
	{"leaves", "internal", "status"},
	{"foundation", "pkg/iomsg pkg/memory pkg/network pkg/progress pkg/retry pkg/lease " +
		"pkg/mutualtls pkg/trace", base},
	{"faults", "pkg/fault", base},
	{"libdoca", "pkg/doca", base},
	{"epochs", "pkg/epoch", base},
	{"blockio", "pkg/blockio", base},
	{"front-ends", "pkg/nbd pkg/ublk", base + "blockio"},
	{"admin", "pkg/admin", base},

	// No seam knows another. Only providers know libdoca.
	{"comch", "pkg/comch", base},
	{"rdma", "pkg/rdma", base},
	{"dma", "pkg/dma", base},
	{"volume", "pkg/volume", base},
	{"comch-providers", "pkg/comch/emulated pkg/comch/doca", base + "libdoca comch"},
	{"rdma-providers", "pkg/rdma/auto pkg/rdma/doca pkg/rdma/iwarp pkg/rdma/shm pkg/rdma/verbs",
		base + "libdoca rdma"},
	{"dma-providers", "pkg/dma/software pkg/dma/doca", base + "libdoca dma"},
	{"volume-providers", "pkg/volume/rbd", base + "volume"},

	// The engine moves messages, and the control protocol negotiates. Neither knows the other.
	{"engine", "pkg/datapath", base + seams},
	{"control", "pkg/controlmsg", base + "comch rdma"},

	// A hook wraps any provider of its seam. Besides hooks, only programs know faults.
	{"comch-hook", "pkg/comch/hook", base + "faults comch"},
	{"rdma-hook", "pkg/rdma/hook", base + "faults rdma"},
	{"volume-hook", "pkg/volume/hook", base + "faults volume"},
	{"control-hook", "pkg/controlmsg/hook", base + "faults control"},

	// A role gets its providers from the program. A gateway reaches relays through the client.
	{"client", "pkg/client", base + "comch volume control"},
	{"relay-targets", "pkg/relay/internal/targets", base + "rdma control"},
	{"relay", "pkg/relay", base + seams + "epochs control engine relay-targets"},
	{"target", "pkg/target", base + "rdma volume epochs control engine"},
	{"gateway", "pkg/gateway", base + "blockio client"},

	{"documents", "docs", ""},

	// Programs choose providers, read the configuration, and hand each part to its package.
	{"providers", "cmd/internal/providers", base + seams + "libdoca comch-providers rdma-providers " +
		"dma-providers"},
	{"commands", "cmd/internal", commands},
	{"configuration", "cmd/internal/config", commands + "comch-providers volume-providers"},
	{"service", "cmd/internal/service", commands + "configuration rdma-providers"},
	{"dma-copy", "cmd/dma-copy/internal", base + "comch dma commands"},
	{"initiator", "cmd/initiator/internal", base + "faults volume volume-hook client commands"},
	{"programs", "cmd", commands + "comch-providers dma-providers configuration service " +
		"dma-copy initiator"},

	// The annex that emulates libdoca. Being another module, it is imported by nothing here.
	{"emulation", "libdoca", base + "comch comch-providers"},
	{"emulation-programs", "libdoca/cmd", base + "libdoca emulation programs"},

	// The C library: its private part is a program that other programs load.
	{"c-library", "libzcclient", base + "libdoca comch comch-providers client"},

	{"examples", "examples", base + "comch comch-providers dma dma-providers client"},
	{"packaging", "deploy", ""},
	{"tests", "test", commands + "comch-providers rdma-providers dma-providers"},
}

func TestImportsPointUp(t *testing.T) {
	imports := importsOfPackages(t)
	used := map[string]bool{}
	for _, importer := range slices.Sorted(maps.Keys(imports)) {
		from, folder := layerOf(importer)
		if from == nil {
			t.Errorf("%s is in no layer: add it to a row of layers", importer)
			continue
		}
		used[folder] = true
		for _, imported := range imports[importer] {
			to, _ := layerOf(imported)
			if to != nil && to != from && !slices.Contains(strings.Fields(from.imports), to.name) {
				t.Errorf("%s imports %s, and %s may not import %s: move what it needs, or let "+
					"the program hand it over", importer, imported, from.name, to.name)
			}
		}
	}
	for i, l := range layers {
		for folder := range strings.FieldsSeq(l.packages) {
			if !used[folder] {
				t.Errorf("%s: there is no package in %s", l.name, folder)
			}
		}
		for name := range strings.FieldsSeq(l.imports) {
			above := slices.IndexFunc(layers, func(l layer) bool { return l.name == name })
			if above < 0 || above > i {
				t.Errorf("%s imports %q, which is no layer above it", l.name, name)
			}
		}
	}
}

// importsOfPackages returns what the folders of this module, and of libdoca, import of it.
func importsOfPackages(t *testing.T) map[string][]string {
	files := trackedFiles(t)
	imports := map[string][]string{}
	for _, file := range files {
		folder := path.Dir(file)
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") ||
			isInAnotherModule(folder, files) {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), "../../"+file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		imports[folder] = slices.Grow(imports[folder], len(parsed.Imports))
		for _, spec := range parsed.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if name, ours := strings.CutPrefix(imported, module); ours {
				imports[folder] = append(imports[folder], name)
			}
		}
	}
	return imports
}

func isInAnotherModule(folder string, files []string) bool {
	for ; folder != "."; folder = path.Dir(folder) {
		if folder != "libdoca" && slices.Contains(files, folder+"/go.mod") {
			return true
		}
	}
	return false
}

// layerOf returns the layer of a package, and the folder that decides it.
func layerOf(name string) (*layer, string) {
	for folder := name; folder != "."; folder = path.Dir(folder) {
		for i, l := range layers {
			if slices.Contains(strings.Fields(l.packages), folder) {
				return &layers[i], folder
			}
		}
	}
	return nil, ""
}
