// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// users are the functions that write and read a cursor.
type users struct{ writers, readers map[string]bool }

// The table of cursors.go lists the functions that use each cursor.
func TestTheTableOfCursorsListsTheirUsers(t *testing.T) {
	paths, err := filepath.Glob("*.go")
	must(t, err)
	table, code := map[string]users{}, map[string]users{}
	for field := range reflect.TypeFor[cursors]().Fields() {
		code[field.Name] = users{map[string]bool{}, map[string]bool{}}
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		must(t, err)
		if path == "cursors.go" {
			readTable(file, table)
		}
		for _, declaration := range file.Decls {
			if f, is := declaration.(*ast.FuncDecl); is {
				noteUses(f, code)
			}
		}
	}
	if len(table) != len(code) {
		t.Errorf("the table has cursors %v, the code %v", slices.Sorted(maps.Keys(table)),
			slices.Sorted(maps.Keys(code)))
	}
	for cursor, want := range code {
		got := table[cursor]
		if !maps.Equal(got.writers, want.writers) || !maps.Equal(got.readers, want.readers) {
			t.Errorf("%s: the table has writers %v and readers %v, the code %v and %v", cursor,
				slices.Sorted(maps.Keys(got.writers)), slices.Sorted(maps.Keys(got.readers)),
				slices.Sorted(maps.Keys(want.writers)), slices.Sorted(maps.Keys(want.readers)))
		}
	}
}

// readTable reads the rows of the table, in which a row without a cursor continues the one before.
func readTable(file *ast.File, table map[string]users) {
	cursor := ""
	const license = 1 // comment before the table
	for line := range strings.Lines(file.Comments[license].Text()) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(strings.TrimSpace(cells[0]), "cursor") {
			continue
		}
		if name := strings.TrimSpace(cells[0]); name != "" {
			cursor = name
			table[cursor] = users{map[string]bool{}, map[string]bool{}}
		}
		for i, list := range []map[string]bool{table[cursor].writers, table[cursor].readers} {
			for name := range strings.SplitSeq(cells[2+i], ",") {
				if name = strings.TrimSpace(name); name != "" {
					list[name] = true
				}
			}
		}
	}
}

// noteUses notes the cursors of the connection c that a function uses.
func noteUses(f *ast.FuncDecl, code map[string]users) {
	written := map[ast.Node]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if a, is := n.(*ast.AssignStmt); is {
			for _, target := range a.Lhs {
				written[target] = true
			}
		}
		s, is := n.(*ast.SelectorExpr)
		if !is {
			return true
		}
		if of, is := s.X.(*ast.Ident); !is || of.Name != "c" {
			return true
		}
		if u, is := code[s.Sel.Name]; is && written[s] {
			u.writers[f.Name.Name] = true
		} else if is {
			u.readers[f.Name.Name] = true
		}
		return true
	})
}

// What the table says holds between any two polls of both sides, whatever they send.
func TestWhatHoldsOfTheCursors(t *testing.T) {
	seedtest.Check(t, func(r *rapid.T) {
		x, y := connected(t)
		post := func(from, to *side) {
			opcodes := []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead}
			request := rdma.SendRequest{
				Opcode:    rapid.SampledFrom(opcodes).Draw(r, "opcode"),
				RemoteKey: to.mem.RemoteKey(),
				Local: rdma.Segment{Key: from.mem.LocalKey(),
					Length: rapid.Uint32Range(0, sideBytes).Draw(r, "length")},
			}
			if request.Opcode == rdma.OpSend {
				_ = to.conn.PostReceive([]rdma.ReceiveRequest{{Local: rdma.Segment{
					Key: to.mem.LocalKey(), Length: sideBytes}}})
			}
			_ = from.conn.PostSend([]rdma.SendRequest{request}) // full, at times
		}
		r.Repeat(map[string]func(*rapid.T){
			"x posts": func(*rapid.T) { post(x, y) }, "y posts": func(*rapid.T) { post(y, x) },
			"x polls": func(*rapid.T) { x.poll() }, "y polls": func(*rapid.T) { y.poll() },
			"": func(r *rapid.T) {
				checkCursors(r, x.conn, y.conn)
				checkCursors(r, y.conn, x.conn)
			},
		})
	})
}

func checkCursors(t *rapid.T, c, peer *connection) {
	for name, holds := range map[string]bool{
		"tail ≤ peerConsumed + ringBytes": c.tail-c.peerConsumed <= ringBytes,
		"published ≤ tail":                c.published <= c.tail,
		"peerConsumed ≤ tail":             c.peerConsumed <= c.tail,
		"blockedAt ≤ peerConsumed":        c.blockedAt <= c.peerConsumed,
		"position ≤ the peer's published": c.position <= peer.published,
		"told ≤ position":                 c.told <= c.position,
		"the tail is published":           c.own.header.tail.Load() == c.published,
		"what was consumed is published":  c.own.header.consumed.Load() == c.told,
	} {
		if !holds {
			t.Errorf("%s does not hold: %+v, the peer has %+v", name, c.cursors, peer.cursors)
		}
	}
}
