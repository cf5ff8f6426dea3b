// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/goldentest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The listing has all that programs are compiled and linked with: whoever changes it decides
// whether the programs of yesterday still work. "go test ./libzcclient/test -update" writes it.
func TestTheInterfaceIsWhatTheListingSays(t *testing.T) {
	t.Parallel()
	library := libraryFile(t, "libzcclient.so.0")
	names, err := library.DynString(elf.DT_SONAME)
	if err != nil {
		t.Fatal(err)
	}
	var listing bytes.Buffer
	fmt.Fprintf(&listing, "soname %s\n", strings.Join(names, " "))
	for _, s := range exported(t, library) {
		fmt.Fprintf(&listing, "symbol %s\n", s)
	}
	header := declarations(t)
	for _, f := range prototypes.FindAllString(header, -1) {
		fmt.Fprintf(&listing, "function %s\n", strings.Join(strings.Fields(f), " "))
	}
	listing.WriteString(run(t, compileLayouts(t, header)))
	goldentest.Check(t, "../../docs/api/libzcclient.txt", listing.Bytes())
}

func libraryFile(t *testing.T, name string) *elf.File {
	t.Helper()
	file, err := elf.Open(filepath.Join(built(t), "lib", name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

// exported returns the symbols that a library defines, with their versions.
func exported(t *testing.T, library *elf.File) (names []string) {
	t.Helper()
	symbols, err := library.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && s.Section != elf.SHN_ABS {
			names = append(names, strings.TrimSuffix(s.Name+"@"+s.Version, "@"))
		}
	}
	slices.Sort(names)
	return names
}

// Neither library shows a program, or another library, anything of Go.
func TestNothingButTheInterfaceIsExported(t *testing.T) {
	t.Parallel()
	for file, allowed := range map[string]string{
		"libzcclient.so.0":                `^zc_[a-z_]+@ZCCLIENT_0$`,
		"libzcclient/libzcclient-core.so": `^zc_core_[a-z]+$`,
	} {
		names := exported(t, libraryFile(t, file))
		if len(names) < 5 {
			t.Errorf("%s exports only %q", file, names)
		}
		for _, name := range names {
			if !regexp.MustCompile(allowed).MatchString(name) {
				t.Errorf("%s exports %s", file, name)
			}
		}
	}
	// What starts a thread would run when the library is loaded.
	needed, err := libraryFile(t, "libzcclient.so.0").ImportedLibraries()
	for _, library := range needed {
		if library != "libc.so.6" && !strings.HasPrefix(library, "ld-linux") {
			t.Errorf("libzcclient.so needs %s", library)
		}
	}
	if err != nil || len(needed) == 0 {
		t.Errorf("libzcclient.so needs %q, %v", needed, err)
	}
}

var (
	comments     = regexp.MustCompile(`(?s)/\*.*?\*/`)
	prototypes   = regexp.MustCompile(`(?m)^(?:int|const char \*)[ ]?zc_[a-z_]+\([^)]*\);`)
	enumerators  = regexp.MustCompile(`(?m)^\t(ZC_[A-Z_]+) =`)
	macros       = regexp.MustCompile(`(?m)^#define (ZC_[A-Z_]+) `)
	structures   = regexp.MustCompile(`(?s)\nstruct (zc_[a-z]+) \{\n(.*?)\n\};`)
	fieldOfLines = regexp.MustCompile(`(?m)\*?([a-z_]+)(?:\[\d+\])?[,;]`)
)

// declarations returns the header without comments.
func declarations(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../include/zcclient.h")
	if err != nil {
		t.Fatal(err)
	}
	return comments.ReplaceAllString(string(text), "")
}

// compileLayouts compiles a program that prints the constants and the layouts of structures.
func compileLayouts(t *testing.T, header string) string {
	t.Helper()
	var source strings.Builder
	source.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include <zcclient.h>\n" +
		"int main(void)\n{\n")
	constants := append(macros.FindAllStringSubmatch(header, -1),
		enumerators.FindAllStringSubmatch(header, -1)...)
	for _, c := range constants {
		fmt.Fprintf(&source, "printf(\"constant %s %%d\\n\", (int)%s);\n", c[1], c[1])
	}
	found := structures.FindAllStringSubmatch(header, -1)
	if len(found) != 3 || len(constants) < 40 {
		t.Fatalf("the header has %d structures and %d constants", len(found), len(constants))
	}
	for _, s := range found {
		fmt.Fprintf(&source, "printf(\"struct %s %%zu\\n\", sizeof(struct %s));\n", s[1], s[1])
		for _, f := range fieldOfLines.FindAllStringSubmatch(s[2], -1) {
			fmt.Fprintf(&source, "printf(\"field %[1]s.%[2]s at %%zu, %%zu bytes\\n\", "+
				"offsetof(struct %[1]s, %[2]s), sizeof(((struct %[1]s *)0)->%[2]s));\n", s[1], f[1])
		}
	}
	source.WriteString("return 0;\n}\n")
	file := filepath.Join(t.TempDir(), "layouts.c")
	if err := os.WriteFile(file, []byte(source.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return compile(t, file, "-std=c99")
}

// The codes have the numbers and names of those that cross the wire.
func TestCodesAreThoseOfTheProtocol(t *testing.T) {
	t.Parallel()
	header := declarations(t)
	for code := range status.CodeCount {
		want := fmt.Sprintf("\tZC_%v = %d", status.Code(code), -code)
		if !strings.Contains(header, want+",") {
			t.Errorf("the header lacks %q", want)
		}
	}
}
