// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func TestSpecsAreParsedAndPrinted(t *testing.T) {
	for text, want := range map[string]volume.Backend{
		"v=memory:1PiB":                 volume.MemoryBackend{Size: 1 << 50},
		"v=memory:64MiB":                volume.MemoryBackend{Size: 64 << 20},
		"v=file:/dev/sdx":               volume.FileBackend{Path: "/dev/sdx"},
		"v=file:a=b:c,size=1GiB":        volume.FileBackend{Path: "a=b:c", Size: 1 << 30},
		"v=file:relative path,readonly": volume.FileBackend{Path: "relative path", ReadOnly: true},
		"v=file:/dev/sdx,direct":        volume.FileBackend{Path: "/dev/sdx", Direct: true},
		"v=file:/dev/sdx,shared=fenced-by-operator": volume.FileBackend{Path: "/dev/sdx",
			FencedByOperator: true},
		"v=file:/dev/sdx,exclusive": volume.FileBackend{Path: "/dev/sdx"},
		"v=volume:disk":             volume.Alias{Of: "disk"},
		"v=volume:disk,readonly":    volume.Alias{Of: "disk", ReadOnly: true},
	} {
		spec, err := volume.ParseSpec(text, 4096)
		if err != nil {
			t.Errorf("ParseSpec(%q): %v", text, err)
			continue
		}
		if spec.Name != "v" || spec.BlockSize != 4096 || !cmp.Equal(spec.Backend, want) {
			t.Errorf("ParseSpec(%q) = %+v, want %+v", text, spec, want)
		}
		if spec.String() != text {
			t.Errorf("%q prints as %q", text, spec.String())
		}
	}
}

func TestBadSpecsAreRejectedWithTheReason(t *testing.T) {
	for text, want := range map[string]string{
		"":                             `has no "="`,
		"/dev/sdx":                     `has no "="`,
		"=memory:1MiB":                 "name \"\" is not",
		"a\x01b=memory:1MiB":           "is not 1 to 255 bytes",
		strings.Repeat("n", 256) + "=": "kind of volume",
		strings.Repeat("n", 256) + "=memory:1MiB": "is not 1 to 255 bytes",
		"v=":                     "the kinds are memory, file, rbd, and volume",
		"v=memory":               "nothing follows the kind of volume memory: write for instance memory:1GiB",
		"v=disk:/x":              "it does not begin with a kind of volume and a colon: the kinds are memory, file, rbd, and volume",
		"v=memory:":              "size is empty",
		"v=memory:lots":          "memory:SIZE",
		"v=memory:0":             "less than one block of 4KiB",
		"v=memory:5000":          "not a positive multiple of the block size 4KiB",
		"v=file:":                "the path is empty",
		"v=file:,readonly":       "the path is empty",
		"v=file:/x,size=":        "size is empty",
		"v=file:/x,size=0":       "leaves no room for data",
		"v=file:/x,size=5000":    "not a positive multiple of the block size 4KiB",
		"v=volume:":              "is not volume:NAME",
		"v=volume:,readonly":     "is not volume:NAME",
		"v=volume:disk,direct":   `unknown option "direct": the options are readonly, exclusive`,
		"v=volume:disk,readonyl": "did you mean readonly?",
		"v=memory:1MiB,exclusiv": `memory:1MiB: unknown option "exclusiv": did you mean exclusive?`,
		"v=file:/x,sise=1GiB":    `unknown option "sise": did you mean size=SIZE?`,
		"v=1GiB":                 "a size alone is no backend: write memory:1GiB",
		"v=/var/tmp/x": "a path alone is no backend: write file:/var/tmp/x, with ,size=SIZE if " +
			"there is no such file yet",
		"v=/var/tmp/x,size=1GiB":         "write file:/var/tmp/x,size=1GiB",
		"v=./a:b":                        "write file:./a:b",
		"v=memroy:1GiB":                  `unknown kind of volume "memroy": did you mean memory:?`,
		"v=File:/x":                      `unknown kind of volume "File": did you mean file:?`,
		"v=rbd":                          "write for instance rbd:POOL/IMAGE",
		"a=b=memory:1MiB":                `"=" ends the name, which cannot contain it`,
		"memory:1MiB":                    "are missing: write for instance disk=memory:1MiB",
		"file:/x,size=1GiB":              "write for instance disk=file:/x,size=1GiB",
		"v=memory:1ZiB":                  `unknown unit "ZiB"`,
		"v=file:/x,fast":                 `unknown option "fast"`,
		"v=file:/x,":                     `unknown option ""`,
		"v=file:/x,size=1MiB,readonly":   "which readonly forbids",
		"v=memory:18446744073709551615B": "not a positive multiple",
	} {
		spec, err := volume.ParseSpec(text, 4096)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!errors.Is(err, status.InvalidValue) {
			t.Errorf("ParseSpec(%q) = %+v, %v, want InvalidValue with %q", text, spec, err, want)
		}
	}
}

func TestAnErrorRepeatsNoSecret(t *testing.T) {
	for text, want := range map[string]string{
		"v=memory:1MiB,passphrase=hunter2": `unknown option "passphrase": this kind of volume has no secret`,
		"v=file:/x,key=hunter2,hunter2":    `unknown option "key": this kind of volume has no secret`,
		"v=file:/x,sise=hunter2":           `unknown option "sise": did you mean size=SIZE?`,
		"memory:1MiB,key=hunter2":          "write for instance disk=memory:1MiB,key=…",
		"v:memory,password=hunter2":        "",
	} {
		_, err := volume.ParseSpec(text, 4096)
		if err == nil || strings.Contains(err.Error(), "hunter2") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("ParseSpec(%q): %v", text, err)
		}
	}
	for text, want := range map[string]string{
		"rbd:p/i,id=x,passphrase=hunter2,readonly": "rbd:p/i,id=x,passphrase=…",
		"rbd:p/i,passphrase-file=/etc/p,create=1G": "rbd:p/i,passphrase-file=/etc/p,create=1G",
		"memory:1MiB,exclusiv":                     "memory:1MiB,exclusiv",
		"":                                         "",
	} {
		if got := volume.Redacted(text); got != want {
			t.Errorf("Redacted(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestBlockSizesOtherThanPowersOfTwoAreRejected(t *testing.T) {
	for _, blockSize := range []uint32{0, 1, 256, 4095, 6144, 2 << 20} {
		_, err := volume.ParseSpec("v=memory:12MiB", blockSize)
		if !errors.Is(err, status.InvalidValue) {
			t.Errorf("block size %d: %v", blockSize, err)
		}
	}
	for _, blockSize := range []uint32{volume.MinBlockSize, 4096, volume.MaxBlockSize} {
		if _, err := volume.ParseSpec("v=memory:12MiB", blockSize); err != nil {
			t.Errorf("block size %d: %v", blockSize, err)
		}
	}
}

func TestSpecWithoutBackendIsRejected(t *testing.T) {
	_, err := volume.Open(volume.Spec{Name: "v", BlockSize: 4096})
	if !errors.Is(err, status.InvalidValue) {
		t.Errorf("Open returned %v", err)
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, seed := range []string{
		"v=memory:64MiB", "v=file:/tmp/x,size=1GiB", "v=file:/x,readonly", "=:,",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := volume.ParseSpec(text, 4096)
		if err != nil {
			return
		}
		again, err := volume.ParseSpec(spec.String(), 4096)
		if err != nil || !cmp.Equal(again, spec) {
			t.Fatalf("%q printed as %q, which parses as %+v, %v", text, spec.String(), again, err)
		}
	})
}
