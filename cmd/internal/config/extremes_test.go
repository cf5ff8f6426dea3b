// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

// daemon is a daemon whose every key the tests set.
type daemon struct {
	prefix string
	base   []string // required variables
	keys   []Key
	load   func(Sources) (interface{ Dump(io.Writer) error }, error)
}

var daemons = map[string]daemon{
	"relay": {RelayPrefix, []string{"ZC_RELAY__CHANNELS__0__TARGET=10.0.0.5:7470",
		"ZC_RELAY__CHANNELS__0__VOLUME=disk"}, RelayKeys(),
		func(s Sources) (interface{ Dump(io.Writer) error }, error) { return LoadRelay(s) }},
	"target": {TargetPrefix, []string{"ZC_TARGET__VOLUMES__0__NAME=disk",
		"ZC_TARGET__VOLUMES__0__BACKEND=memory:1MiB"}, TargetKeys(),
		func(s Sources) (interface{ Dump(io.Writer) error }, error) { return LoadTarget(s) }},
}

// neighbours holds, for keys that another key restricts, a value of the other that fits all.
var neighbours = map[string][2]string{
	"control.keep_alive_interval":        {"control.keep_alive_dead_after", "1h"},
	"control.keep_alive_dead_after":      {"control.keep_alive_interval", "1ms"},
	"channels.0.import_device":           {"comch.provider", "doca"},
	"comch.wait":                         {"comch.provider", "doca"},
	"rdma.gid_index":                     {"rdma.provider", "verbs"},
	"rdma.path_mtu":                      {"rdma.provider", "verbs"},
	"rdma.type_of_service":               {"rdma.provider", "verbs"},
	"rdma.retry_count":                   {"rdma.provider", "verbs"},
	"rdma.ack_timeout":                   {"rdma.provider", "verbs"},
	"rdma.rnr_retry_count":               {"rdma.provider", "verbs"},
	"security.fabric":                    {"rdma.provider", "verbs"},
	"channels.0.target_protocol":         {"rdma.provider", "doca"},
	"listen.protocol":                    {"rdma.provider", "doca"},
	"channels.0.reconnect.first_pause":   {"channels.0.reconnect.longest_pause", "8760h"},
	"channels.0.reconnect.longest_pause": {"channels.0.reconnect.first_pause", "1ms"},
}

// dump loads the configuration with one key set, and returns its dump.
func (d *daemon) dump(t *testing.T, key Key, text string) (string, error) {
	t.Helper()
	environ := append([]string{key.Variable(d.prefix) + "=" + text}, d.base...)
	if key.Path == "security.data" {
		for _, file := range []string{"certificate", "key", "ca"} {
			environ = append(environ, Key{Path: "tls." + file}.Variable(d.prefix)+"=/dev/null")
		}
	}
	if n, ok := neighbours[key.Path]; ok {
		environ = append(environ, Key{Path: n[0]}.Variable(d.prefix)+"="+n[1])
	}
	return d.dumpOf(t, Sources{Environ: environ})
}

func (d *daemon) dumpOf(t *testing.T, s Sources) (string, error) {
	t.Helper()
	c, err := d.load(s)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	if err := c.Dump(&b); err != nil {
		t.Fatal(err)
	}
	return b.String(), nil
}

func TestEveryExtremeParsesAndDumpsAsItself(t *testing.T) {
	for name, d := range daemons {
		tried := 0
		for _, key := range d.keys {
			for _, text := range key.Extremes {
				tried++
				first, err := d.dump(t, key, text)
				if err != nil {
					t.Errorf("%s: %s: %q: %v", name, key.Path, text, err)
					continue
				}
				last := key.Path[strings.LastIndex(key.Path, separator)+1:]
				if !strings.Contains(first, last+": "+text+"\n") &&
					!strings.Contains(first, last+": \""+text+"\"\n") {
					t.Errorf("%s: %s: the dump has no %q", name, key.Path, text)
				}
				second, err := d.dumpOf(t, Sources{File: write(t, first)})
				if err != nil || second != first {
					t.Errorf("%s: %s: %q: the dump reads back with differences: %v", name, key.Path,
						text, err)
				}
			}
		}
		if tried < 40 {
			t.Errorf("%s: only %d extremes were tried", name, tried)
		}
	}
}

// Beyond its extremes, a duration is rejected by the name of its key, and never wraps around.
func TestADurationBeyondItsExtremesIsRejected(t *testing.T) {
	for name, d := range daemons {
		durations := 0
		for _, key := range d.keys {
			if key.Type != "duration" {
				continue
			}
			durations++
			least, most := time.Duration(math.MaxInt64), time.Duration(0)
			for _, text := range key.Extremes {
				if extreme, err := time.ParseDuration(text); err == nil {
					least, most = min(least, extreme), max(most, extreme)
				}
			}
			for _, wrong := range []string{"-1ns", (-most).String(), "-infinite", "Infinite", "",
				"9223372036854775808ns", "2562047h47m16.854775808s", "1e300h", "NaN"} {
				if _, err := d.dump(t, key, wrong); err == nil {
					t.Errorf("%s: %s accepts %q", name, key.Path, wrong)
				} else if !strings.Contains(err.Error(), key.Path) {
					t.Errorf("%s: %s: %q: %v", name, key.Path, wrong, err)
				}
			}
			for _, beyond := range []time.Duration{least - 1, most + 1} {
				if beyond < 0 {
					continue // after the largest of all
				}
				if _, err := d.dump(t, key, beyond.String()); err == nil {
					t.Errorf("%s: %s accepts %v, beyond its extremes %v", name, key.Path, beyond,
						key.Extremes)
				}
			}
		}
		if durations < 5 {
			t.Errorf("%s: only %d durations were tried", name, durations)
		}
	}
}
