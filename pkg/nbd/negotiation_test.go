// SPDX-License-Identifier: Apache-2.0

package nbd_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/nbd"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestOptionsAreAnsweredAsTheSpecificationSays(t *testing.T) {
	const (
		unsupported = repErr + 1
		policy      = repErr + 2
		invalid     = repErr + 3
		unknown     = repErr + 6
		tooBig      = repErr + 9
	)
	name := text("disk")
	for _, test := range []struct {
		name   string
		before []uint32 // options without data
		option uint32
		data   []byte
		want   []uint32 // types of the answers
	}{
		{"list", nil, optList, nil, []uint32{2, 1}},
		{"list with data", nil, optList, []byte{1}, []uint32{invalid}},
		{"info", nil, optInfo, append(name, 0, 0), []uint32{3, 3, 1}},
		{"info with everything", nil, optInfo, append(name, 0, 3, 0, 1, 0, 2, 0, 3),
			[]uint32{3, 3, 3, 3, 1}},
		{"info about the default", nil, optInfo, append(text(""), 0, 0), []uint32{3, 3, 1}},
		{"info with unknown types", nil, optInfo, append(name, 0, 1, 9, 9), []uint32{3, 3, 1}},
		{"info about nothing", nil, optInfo, append(text("x"), 0, 0), []uint32{unknown}},
		{"info without types", nil, optInfo, name, []uint32{invalid}},
		{"info with too few types", nil, optInfo, append(name, 0, 2, 0, 0), []uint32{invalid}},
		{"info with a length beyond the end", nil, optInfo, []byte{0xff, 0xff, 0xff, 0xff, 0, 0},
			[]uint32{invalid}},
		{"info with a NUL", nil, optInfo, append(text("a\x00"), 0, 0), []uint32{invalid}},
		{"info with a name that is not UTF-8", nil, optInfo, append(text("\xff"), 0, 0),
			[]uint32{invalid}},
		{"info with a long name", nil, optInfo,
			append(text(string(bytes.Repeat([]byte("a"), 4097))), 0, 0), []uint32{invalid}},
		{"go to nothing", nil, optGo, append(text("x"), 0, 0), []uint32{unknown}},
		{"go", nil, optGo, append(name, 0, 0), []uint32{3, 3, 1}},
		{"structured replies", nil, optStructured, nil, []uint32{1}},
		{"structured replies twice", []uint32{optStructured}, optStructured, nil, []uint32{1}},
		{"structured replies after extended headers", []uint32{optExtended}, optStructured, nil,
			[]uint32{invalid}},
		{"extended headers", nil, optExtended, nil, []uint32{1}},
		{"contexts without structured replies", nil, optListMeta, append(name, queries()...),
			[]uint32{invalid}},
		{"all contexts", []uint32{optStructured}, optListMeta, append(name, queries()...),
			[]uint32{4, 1}},
		{"contexts of a namespace", []uint32{optStructured}, optListMeta,
			append(name, queries("base:")...), []uint32{4, 1}},
		{"select nothing", []uint32{optStructured}, optSetMeta, append(name, queries()...),
			[]uint32{1}},
		{"select an unknown context", []uint32{optStructured}, optSetMeta,
			append(name, queries("qemu:dirty-bitmap")...), []uint32{1}},
		{"select a namespace", []uint32{optStructured}, optSetMeta,
			append(name, queries("base:")...), []uint32{1}},
		{"select the context", []uint32{optExtended}, optSetMeta,
			append(name, queries("x", "base:allocation", "base:allocation")...), []uint32{4, 1}},
		{"select of nothing", []uint32{optStructured}, optSetMeta, append(text("x"),
			queries("base:allocation")...), []uint32{unknown}},
		{"a million queries", []uint32{optStructured}, optSetMeta, append(name, 0, 0x10, 0, 0),
			[]uint32{invalid}},
		{"bytes after the queries", []uint32{optStructured}, optSetMeta,
			append(append(name, queries()...), 0), []uint32{invalid}},
		{"a query that is longer than the option", []uint32{optStructured}, optSetMeta,
			slices.Concat(name, []byte{0, 0, 0, 1, 0, 0, 0, 16}, []byte("base:allocation")),
			[]uint32{invalid}},
		{"TLS without a certificate", nil, optStartTLS, nil, []uint32{policy}},
		{"an unknown option", nil, 77, []byte("data"), []uint32{unsupported}},
		{"the option that was withdrawn", nil, 4, nil, []uint32{unsupported}},
		{"too much data", nil, 77, make([]byte, 100<<10), []uint32{tooBig}},
		{"abort", nil, optAbort, nil, []uint32{1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, path := startServer(t, nbd.Config{}, newMemoryExport())
			c := dial(t, path)
			c.greet()
			for _, option := range test.before {
				c.mustOption(option, nil)
			}
			var got []uint32
			for _, a := range c.option(test.option, slices.Clone(test.data)) {
				got = append(got, a.kind)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("the answers are %#x, want %#x", got, test.want)
			}
			if test.option == optAbort {
				c.expectEnd()
			}
		})
	}
}

// A name may be as long as a string of the protocol, which is the longest error text that clients
// accept, too.
func TestRefusalsDoNotEchoAnyAmountOfTheClientsInput(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	_, path := startServer(t, nbd.Config{Logger: zap.New(core)}, newMemoryExport())
	for _, long := range []string{strings.Repeat("x", 4096), strings.Repeat("\u2028", 4096/3)} {
		for option, data := range map[uint32][]byte{
			optInfo: append(text(long), 0, 0), optGo: append(text(long), 0, 0),
			optListMeta: append(text(long), queries()...),
			optSetMeta:  append(text(long), queries("base:allocation")...),
		} {
			c := dial(t, path)
			c.greet()
			c.mustOption(optStructured, nil)
			a := c.option(option, data)[0]
			if a.kind != repErr+6 || len(a.data) > longestRefusal {
				t.Errorf("option %d is refused with %#x in %d bytes", option, a.kind, len(a.data))
			}
			_ = c.conn.Close()
		}
		c := dial(t, path)
		c.greet()
		c.write(append(optionHeader(optExportName, len(long)), long...))
		c.expectEnd()
	}
	testkit.Eventually(t, "all reasons are logged", func() bool { return logs.Len() == 6 })
	for _, entry := range logs.All() {
		testkit.CheckBounded(t, errors.New(fmt.Sprint(entry.ContextMap()["error"])))
	}
}

func TestInformationIsThatOfTheExport(t *testing.T) {
	export := newMemoryExport()
	_, path := startServer(t, nbd.Config{}, export)
	c := dial(t, path)
	c.greet()
	c.mustOption(optStructured, nil)
	ask := append(text(""), 0, 2, 0, 1, 0, 2)
	got := make(map[uint16][]byte)
	for _, a := range c.mustOption(optInfo, ask) {
		got[binary.BigEndian.Uint16(a.data)] = a.data[2:]
	}
	flags := uint16(1 | 4 | 8 | 32 | 64 | 128 | 256 | 1024 | 2048)
	want := map[uint16][]byte{
		0: binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(nil, testSize), flags),
		1: []byte("disk"), 2: []byte("a test"),
		3: {0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("information is %v, want %v", got, want)
	}
	export.set(func() { export.info.ReadOnly, export.info.Size = true, 2*testSize })
	c.choose(simple)
	if c.size != 2*testSize || c.flags&2 == 0 || c.flags&(32|64) != 0 {
		t.Errorf("after a change the size is %d, and the flags are %#x", c.size, c.flags)
	}
}

func TestTheEmptyNameNeverMovesToAnotherExport(t *testing.T) {
	server, path := startServer(t, nbd.Config{}, newMemoryExport())
	if err := server.AddExport("other", newMemoryExport()); err != nil {
		t.Fatal(err)
	}
	server.EndExport("disk")
	c := dial(t, path)
	c.greet()
	for _, reply := range c.option(optGo, append(text(""), 0, 0)) {
		if reply.kind != repErr+6 {
			t.Errorf("the default has ended, and a client that wants it gets %+v", reply)
		}
	}
}

func TestAClientThatGetsNoExportIsLogged(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	_, path := startServer(t, nbd.Config{Logger: zap.New(core)}, newMemoryExport())
	for name, leave := range map[string]func(c *client){
		"by NBD_OPT_ABORT":         func(c *client) { c.option(optAbort, nil) },
		"by the end of the stream": func(c *client) { _ = c.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, path)
			c.greet()
			c.option(optGo, append(text("none"), 0, 0))
			c.mustOption(optInfo, append(text("disk"), 0, 0)) // what there is instead
			c.option(optGo, append(text("nothing"), 0, 0))
			leave(c)
			testkit.Eventually(t, "the reason is logged", func() bool {
				for _, entry := range logs.TakeAll() {
					if entry.ContextMap()["error"] == `there is no export "nothing"` {
						return true
					}
				}
				return false
			})
		})
	}
}

func TestTheEmptyNameChoosesTheExportThatHasItOrTheFirst(t *testing.T) {
	server, path := startServer(t, nbd.Config{}, newMemoryExport())
	sizeOfDefault := func() uint64 {
		c := dial(t, path)
		c.greet()
		infos := c.mustOption(optInfo, append(text(""), 0, 0))
		return binary.BigEndian.Uint64(infos[0].data[2:])
	}
	if size := sizeOfDefault(); size != testSize {
		t.Errorf("the only export has %d bytes", size)
	}
	unnamed := newMemoryExport()
	unnamed.info.Size = 4096
	if err := server.AddExport("", unnamed); err != nil {
		t.Fatal(err)
	}
	if size := sizeOfDefault(); size != 4096 {
		t.Errorf("the default has %d bytes, those of the export without a name are 4096", size)
	}
	if err := server.AddExport("", newMemoryExport()); !errors.Is(err, status.AlreadyExist) {
		t.Errorf("a second export without a name: %v", err)
	}
}

func TestAnExportCanBeChosenByNameAlone(t *testing.T) {
	_, path := startServer(t, nbd.Config{}, newMemoryExport())
	for name, flags := range map[string]uint32{"newstyle": 0, "fixed newstyle": 1,
		"without zeroes": 3} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, path)
			c.read(18)
			c.write(binary.BigEndian.AppendUint32(nil, flags))
			c.write(append(optionHeader(optExportName, 4), "disk"...))
			length := 10
			if flags&2 == 0 {
				length += 124
			}
			b := c.read(length)
			if size := binary.BigEndian.Uint64(b); size != testSize {
				t.Errorf("the size is %d", size)
			}
			o := c.do(call{kind: blockio.Read, length: 512, offset: 1})
			if o.failure != blockio.Success {
				t.Errorf("read fails with %v", o.failure)
			}
		})
	}
}

func TestAContextHoldsForItsExport(t *testing.T) {
	server, path := startServer(t, nbd.Config{}, newMemoryExport())
	if err := server.AddExport("other", newMemoryExport()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]blockio.Errno{"disk": blockio.Success, "other": blockio.Invalid} {
		c := dial(t, path)
		c.greet()
		c.mode = structured
		c.mustOption(optStructured, nil)
		c.mustOption(optSetMeta, append(text("disk"), queries("base:allocation")...))
		c.mustOption(optGo, append(text(name), 0, 0))
		if o := c.do(call{kind: blockio.BlockStatus, length: 512}); o.failure != want {
			t.Errorf("block status of export %q: %v, want %v", name, o.failure, want)
		}
	}
}

// endWithin is how the names of violations begin that are the end of the input.
const endWithin = "the end within "

// violations holds input after which a server has to end the negotiation. It waits for more only
// where the name begins with endWithin.
var violations = map[string][]byte{
	"unknown client flags":         {0, 0, 0, 4},
	"wrong option magic":           append([]byte{0, 0, 0, 3}, "IHAVEOPQ\x00\x00\x00\x03\x00\x00\x00\x00"...),
	"a request instead":            append([]byte{0, 0, 0, 3}, make([]byte, 28)...),
	"an option of 4 GiB":           append([]byte{0, 0, 0, 3}, optionHeader(optList, 1<<32-1)...),
	"an option of 300 KiB":         append([]byte{0, 0, 0, 3}, optionHeader(77, 300<<10)...),
	"a name of 4 GiB":              append([]byte{0, 0, 0, 3}, optionHeader(optExportName, 1<<32-1)...),
	"an export that is unknown":    append(append([]byte{0, 0, 0, 3}, optionHeader(optExportName, 1)...), 'x'),
	"a name with NUL":              append(append([]byte{0, 0, 0, 3}, optionHeader(optExportName, 1)...), 0),
	"an option in old newstyle":    append([]byte{0, 0, 0, 0}, optionHeader(optList, 0)...),
	"too many options":             append([]byte{0, 0, 0, 3}, bytes.Repeat(optionHeader(77, 0), 300)...),
	endWithin + "an option":        append([]byte{0, 0, 0, 3}, optionHeader(optList, 5)...),
	endWithin + "the magic":        {0, 0, 0, 3, 'I'},
	endWithin + "the client flags": {0, 0},
}

func TestViolationsEndTheNegotiation(t *testing.T) {
	// The end of the time for a negotiation must not hide that one goes on.
	_, path := startServer(t, nbd.Config{NegotiationTimeout: time.Hour}, newMemoryExport())
	for name, input := range violations {
		t.Run(name, func(t *testing.T) {
			c := dial(t, path)
			c.read(18)
			c.write(input)
			if strings.HasPrefix(name, endWithin) {
				if err := c.conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			// Replies to what was right may come first.
			for b := make([]byte, 4096); ; {
				if _, err := c.conn.Read(b); isTimeout(err) {
					t.Fatal("the server keeps the connection")
				} else if err != nil {
					break
				}
			}
		})
	}
	o := connect(t, path, structured).do(call{kind: blockio.Flush})
	if o.failure != blockio.Success {
		t.Errorf("afterwards, flush fails with %v", o.failure)
	}
}

func TestASilentClientIsNotWaitedFor(t *testing.T) {
	_, path := startServer(t, nbd.Config{NegotiationTimeout: 50 * time.Millisecond},
		newMemoryExport())
	c := dial(t, path)
	c.read(18)
	c.expectEnd()
}

func TestConnectionsBeyondTheLimitAreRefused(t *testing.T) {
	server, path := startServer(t, nbd.Config{MaxConnections: 2, Workers: 2}, newMemoryExport())
	first, second := connect(t, path, simple), connect(t, path, simple)
	third := dial(t, path)
	third.greet()
	all := third.option(optGo, append(text("disk"), 0, 0))
	if last := all[len(all)-1]; last.kind != repErr+2 {
		t.Errorf("the third connection is answered with %#x: %s", last.kind, last.data)
	}
	first.write(first.encode(call{kind: nbd.Disconnect}))
	first.expectEnd()
	testkit.Eventually(t, "the first connection has ended", func() bool {
		return server.Status()[0].Connections == 1
	})
	third.choose(simple)
	for _, c := range []*client{second, third} {
		if o := c.do(call{kind: blockio.Flush}); o.failure != blockio.Success {
			t.Errorf("flush fails with %v", o.failure)
		}
	}
}

func TestMutualTLS(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	server, client := credentials(t, authority, "server.test"),
		credentials(t, authority, "client.test")
	stranger := credentials(t, mutualtlstest.NewAuthority(t), "client.test")
	_, path := startServer(t, nbd.Config{TLS: func() *tls.Config {
		return server.ServerWithoutProtocol(mutualtlstest.Names("client.test"))
	}}, newMemoryExport())

	plain := dial(t, path)
	plain.greet()
	for _, option := range []uint32{optList, optStructured, 77} {
		if a := plain.option(option, nil); a[0].kind != repErr+5 {
			t.Errorf("option %d without TLS is answered with %#x", option, a[0].kind)
		}
	}
	plain.write(append(optionHeader(optExportName, 4), "disk"...))
	plain.expectEnd()

	for name, test := range map[string]struct {
		credentials *mutualtls.Credentials
		welcome     bool
	}{"client": {client, true}, "stranger": {stranger, false}} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, path)
			c.greet()
			config := test.credentials.Client("server.test")
			config.RootCAs = client.Client("server.test").RootCAs
			c.startTLS(config)
			if !test.welcome {
				// The client finds out with its first read.
				_, err := c.conn.Write(optionHeader(optList, 0))
				if err == nil {
					_, err = c.conn.Read(make([]byte, 1))
				}
				if err == nil {
					t.Error("the server accepts a stranger")
				}
				return
			}
			if a := c.option(optStartTLS, nil); a[0].kind != repErr+3 {
				t.Errorf("TLS twice is answered with %#x", a[0].kind)
			}
			c.choose(structured)
			data := bytes.Repeat([]byte("secret"), 50000)
			w := call{kind: blockio.Write, offset: 4711, length: uint64(len(data)), data: data}
			if o := c.do(w); o.failure != blockio.Success {
				t.Fatalf("write fails with %v", o.failure)
			}
			r := call{kind: blockio.Read, offset: 4711, length: uint64(len(data))}
			if o := c.do(r); !bytes.Equal(o.data, data) {
				t.Error("other data was read than written")
			}
			c.write(c.encode(call{kind: nbd.Disconnect}))
			c.expectEnd()
		})
	}
}

// TestAClientWithoutACertificate may have one, of an authority that the server does not name.
func TestAClientWithoutACertificate(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	server := credentials(t, authority, "server.test")
	core, logs := observer.New(zap.WarnLevel)
	_, path := startServer(t, nbd.Config{Logger: zap.New(core), TLS: func() *tls.Config {
		return server.ServerWithoutProtocol(nil)
	}}, newMemoryExport())
	c := dial(t, path)
	c.greet()
	config := server.Client("server.test")
	config.GetClientCertificate = nil
	config.Certificates = nil
	c.startTLS(config)
	if _, err := c.conn.Write(optionHeader(optList, 0)); err == nil {
		_, _ = c.conn.Read(make([]byte, 1))
	}
	for begun := time.Now(); logs.Len() == 0; time.Sleep(time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("nothing is logged")
		}
	}
	if text := fmt.Sprint(logs.All()[0].ContextMap()["error"]); !strings.Contains(text,
		"or none that an authority of the server's --tls-ca has signed") {
		t.Errorf("the log says %q", text)
	}
}

func credentials(t *testing.T, a *mutualtlstest.Authority, name string) *mutualtls.Credentials {
	t.Helper()
	c, err := mutualtls.Load(a.Write(t.TempDir(), []string{name}), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// startTLS does the rest of the conversation over TLS. The handshake happens with what follows.
func (c *client) startTLS(config *tls.Config) {
	c.t.Helper()
	c.mustOption(optStartTLS, nil)
	config.NextProtos, config.VerifyConnection = nil, nil
	c.conn = tls.Client(c.conn, config)
}
