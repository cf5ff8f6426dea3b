// SPDX-License-Identifier: Apache-2.0

// Package api keeps a listing of what the public packages export in docs/api, so that each change
// of it is seen in review: go test ./test/api -update writes the listings.
package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/goldentest"
)

const (
	public    = "github.com/zc-relay/zc-relay/pkg/"
	directory = "../../docs/api"
)

func TestThePublicPackagesExportWhatTheListingsSay(t *testing.T) {
	files := map[string]bool{"libzcclient.txt": true} // libzcclient/test compares it
	for _, p := range load(t) {
		name := strings.ReplaceAll(strings.TrimPrefix(p.Path(), public), "/", "-") + ".txt"
		files[name] = true
		t.Run(name, func(t *testing.T) {
			goldentest.Check(t, filepath.Join(directory, name), listing(p))
		})
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !files[e.Name()] {
			t.Errorf("docs/api/%s is about no package: remove it", e.Name())
		}
	}
}

// isPublic reports whether programs may use a package: it is no test support, and nothing internal.
func isPublic(path string) bool {
	return strings.HasPrefix(path, public) && !strings.Contains(path, "/internal/") &&
		!strings.HasSuffix(path, "test")
}

// load returns the public packages as the compiler has exported them.
func load(t *testing.T) []*types.Package {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Export",
		public+"...")
	list.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	var complaints bytes.Buffer
	list.Stderr = &complaints
	output, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", list, err, complaints.String())
	}
	exported := map[string]string{}
	var paths []string
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p struct{ ImportPath, Export string }
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if exported[p.ImportPath] = p.Export; isPublic(p.ImportPath) {
			paths = append(paths, p.ImportPath)
		}
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(exported[path]) })
	slices.Sort(paths)
	var packages []*types.Package
	for _, path := range paths {
		p, err := imports.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	return packages
}

// listing has one line for each exported name, field, and method.
func listing(p *types.Package) []byte {
	l := lister{of: p}
	for _, name := range p.Scope().Names() {
		if object := p.Scope().Lookup(name); object.Exported() {
			l.object(object)
		}
	}
	return l.lines.Bytes()
}

type lister struct {
	of    *types.Package
	lines bytes.Buffer
}

func (l *lister) line(format string, args ...any) { fmt.Fprintf(&l.lines, format+"\n", args...) }

// show returns the text of a type, without the name of the listed package.
func (l *lister) show(t types.Type) string {
	return types.TypeString(t, func(other *types.Package) string {
		if other == l.of {
			return ""
		}
		return other.Name()
	})
}

func (l *lister) object(object types.Object) {
	switch o := object.(type) {
	case *types.Const:
		l.line("const %s %s = %v", o.Name(), l.show(o.Type()), o.Val().ExactString())
	case *types.Var:
		l.line("var %s %s", o.Name(), l.show(o.Type()))
	case *types.Func:
		l.line("func %s%s", o.Name(), l.signature(o))
	case *types.TypeName:
		l.typeName(o)
	}
}

func (l *lister) signature(f *types.Func) string {
	return strings.TrimPrefix(l.show(f.Type()), "func")
}

func (l *lister) typeName(o *types.TypeName) {
	if o.IsAlias() {
		l.line("type %s = %s", o.Name(), l.show(types.Unalias(o.Type())))
		return
	}
	switch u := o.Type().Underlying().(type) {
	case *types.Struct:
		l.line("type %s struct", o.Name())
		for field := range u.Fields() {
			if field.Exported() {
				l.line("field %s.%s %s", o.Name(), field.Name(), l.show(field.Type()))
			}
		}
	case *types.Interface:
		l.line("type %s interface", o.Name())
		for method := range u.Methods() {
			if !method.Exported() {
				l.line("method %s has methods that nobody else can implement", o.Name())
			}
		}
	default:
		l.line("type %s %s", o.Name(), l.show(u))
	}
	l.methods(o)
}

// methods lists the methods of a type and of pointers to it, those of embedded fields included.
func (l *lister) methods(o *types.TypeName) {
	values := types.NewMethodSet(o.Type())
	all := values
	if !types.IsInterface(o.Type()) {
		all = types.NewMethodSet(types.NewPointer(o.Type()))
	}
	for selection := range all.Methods() {
		method := selection.Obj().(*types.Func)
		if !method.Exported() {
			continue
		}
		receiver := o.Name()
		if values.Lookup(l.of, method.Name()) == nil {
			receiver = "*" + receiver
		}
		l.line("method (%s) %s%s", receiver, method.Name(), l.signature(method))
	}
}

// TestAListingHasEachExportedThing lists a package that has one of each.
func TestAListingHasEachExportedThing(t *testing.T) {
	const source = `package p
type T struct { Field int; hidden int; embedded }
type embedded struct{}
func (embedded) Promoted() {}
func (*T) Changed(n int) error { return nil }
func (t *T) secret() {}
type I interface { Do(t *T); private() }
type A = map[string]T
type N uint8
const C N = 3
var V []I
func F(a ...N) (*T, error) { return nil, nil }
func hidden() {}
`
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := new(types.Config).Check("p", files, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const want = `type A = map[string]T
const C N = 3
func F(a ...N) (*T, error)
type I interface
method I has methods that nobody else can implement
method (I) Do(t *T)
type N uint8
type T struct
field T.Field int
method (*T) Changed(n int) error
method (T) Promoted()
var V []I
`
	if got := string(listing(p)); got != want {
		t.Errorf("the listing is\n%s\nwant\n%s", got, want)
	}
}
