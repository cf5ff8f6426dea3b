// SPDX-License-Identifier: Apache-2.0

package rbd_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
	"github.com/zc-relay/zc-relay/pkg/volume/rbd"
)

func TestBackendsAreParsed(t *testing.T) {
	for text, want := range map[string]rbd.Backend{
		"rbd:pool/image":       {Pool: "pool", Image: "image"},
		"rbd:pool/space/image": {Pool: "pool", Namespace: "space", Image: "image"},
		"rbd:p/i,conf=/etc/c.conf,id=relay,group=g,create=1GiB": {Pool: "p", Image: "i",
			ConfigFile: "/etc/c.conf", User: "relay", Group: "g", Create: 1 << 30},
		"rbd:p/i,takeover": {Pool: "p", Image: "i", TakeOver: true},
		"rbd:p/i,readonly": {Pool: "p", Image: "i", ReadOnly: true},
		"rbd:p/i,takeover,fence=48h": {Pool: "p", Image: "i", TakeOver: true,
			MinimumFence: 48 * time.Hour},
		"rbd:p/i,passphrase-file=/etc/p,readonly": {Pool: "p", Image: "i", ReadOnly: true,
			PassphraseFile: "/etc/p"},
		"rbd:p/i,id=client.relay": {Pool: "p", Image: "i", User: "relay"},
	} {
		spec, err := volume.ParseSpec("v="+text, 4096)
		if err != nil || spec.Backend != want {
			t.Errorf("%s: %+v, %v", text, spec.Backend, err)
			continue
		}
		again, err := volume.ParseSpec(spec.String(), 4096)
		if err != nil || again.Backend != want {
			t.Errorf("%s became %s: %+v, %v", text, spec.String(), again.Backend, err)
		}
	}
}

func TestWrongBackendsAreRejected(t *testing.T) {
	for text, want := range map[string]string{
		"rbd:":                                       "is not rbd:POOL",
		"rbd:image":                                  "is not rbd:POOL",
		"rbd:a/b/c/d":                                "is not rbd:POOL",
		"rbd:/image":                                 "name of the pool",
		"rbd:pool/":                                  "name of the image",
		"rbd:pool/image@snapshot":                    "name of the image",
		"rbd:p/" + strings.Repeat("i", 97):           "name of the image",
		"rbd:p/i,size=1GiB":                          "unknown option \"size\"",
		"rbd:p/i,creat=1GiB":                         "did you mean create=SIZE?",
		"rbd:p/i,conf=":                              "unknown option",
		"rbd:p/i,id=a b":                             "name of the user",
		"rbd:p/i,create=0":                           "no room",
		"rbd:p/i,create=much":                        "much",
		"rbd:p/i,create=1000":                        "less than one block of 4KiB",
		"rbd:p/i,takeover,readonly":                  "takeover needs",
		"rbd:p/i,create=1MiB,readonly":               "readonly forbids",
		"rbd:p/i,passphrase-file=":                   "unknown option",
		"rbd:p/i,passphrase-file=/a\nb":              "cannot be a path",
		"rbd:p/i,create=1MiB,passphrase-file=/etc/p": "rbd encryption format p/i luks2 FILE",
		"rbd:p/i,fence=long":                         "is not a duration",
		"rbd:p/i,fence=0s":                           "is not a duration",
		"rbd:p/i,fence=87600h":                       "for which a former owner is fenced",
	} {
		_, err := volume.ParseSpec("v="+text, 4096)
		if !errors.Is(err, status.InvalidValue) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want InvalidValue with %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"p/i", "p/n/i,id=x", "p/i,create=1GiB", ",,,", "p/i,conf=/,group="} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, argument string) {
		spec, err := volume.ParseSpec("v=rbd:"+argument, 512)
		if err != nil {
			return
		}
		again, err := volume.ParseSpec(spec.String(), 512)
		if err != nil || again.Backend != spec.Backend {
			t.Fatalf("%q became %q: %v", argument, spec.String(), err)
		}
	})
}
