// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/bench/internal/callgrind"
)

func TestEveryPlaceBelongsToALayer(t *testing.T) {
	const module = "./" + modulePath
	for _, c := range []struct{ file, function, layer string }{
		{module + "pkg/datapath/relay_path.go", modulePath + "pkg/datapath.(*RelayLane).forward",
			"relay"},
		{module + "pkg/datapath/slots.go", modulePath + "pkg/datapath.(*RelayLane).forward",
			"relay and target"},
		{module + "pkg/datapath/chain_test.go", budgetedCode, benchmarkLayer},
		{module + "pkg/comch/emulated/ring_unsafe.go",
			modulePath + "pkg/comch/emulated.(*producer).Send", "comch"},
		{module + "pkg/rdma/internal/workqueue/queue.go",
			modulePath + "pkg/rdma/iwarp.(*connection).PostSend", "rdma"},
		{"./encoding/binary/binary.go", modulePath + "pkg/iomsg.Decode", "messages"},
		{"./sync/atomic/type.go", modulePath + "pkg/rdma/shm.(*connection).turn", "rdma"},
		{module + "internal/prefetch/prefetch_amd64.s",
			modulePath + "internal/prefetch.lines.abi0", "other packages"},
		{"./runtime/memmove_amd64.s", "runtime.memmove", runtimeLayer},
		{"???", "0x0000000000401000", runtimeLayer},
	} {
		if layer := layerOf(callgrind.Place{File: c.file, Function: c.function}); layer != c.layer {
			t.Errorf("%s in %s belongs to %q, want %q", c.function, c.file, layer, c.layer)
		}
	}
}

func TestALayerMayCostAFifthMoreThanItsBudget(t *testing.T) {
	path := budgetedPaths[0]
	allowed := budget{path: {"relay": 400, "polling": 10}}
	for _, c := range []struct {
		name     string
		measured map[string]float64
		fails    string
	}{
		{"as planned", map[string]float64{"relay": 400, "polling": 10}, ""},
		{"cheaper", map[string]float64{"relay": 100}, ""},
		{"a fifth more", map[string]float64{"relay": 480, "polling": 10}, ""},
		{"more than a fifth", map[string]float64{"relay": 481, "polling": 10}, "relay takes 481"},
		{"little, of a small budget", map[string]float64{"relay": 400, "polling": 50}, ""},
		{"more of a small budget", map[string]float64{"polling": 51}, "polling takes 51"},
		{"the Go runtime", map[string]float64{runtimeLayer: 1000}, ""},
		{"a new layer", map[string]float64{"relay": 400, "memory": 50}, "memory takes 50"},
	} {
		var table strings.Builder
		err := budget{path: c.measured}.compare(&table, allowed)
		if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.fails)
		}
		for layer := range c.measured {
			if !strings.Contains(table.String(), layer) {
				t.Errorf("%s: the table lacks %q:\n%s", c.name, layer, &table)
			}
		}
	}
}
