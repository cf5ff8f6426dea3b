// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// logged returns what the library writes to its own log while f runs.
func logged(t *testing.T, f func()) string {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	const disable, errors = 10, 30
	backend := create(t, "doca_log_backend_create_with_fd_sdk", int(writer.Fd()))
	ok(t, call("doca_log_backend_set_sdk_level", backend, errors))
	f()
	ok(t, call("doca_log_backend_set_sdk_level", backend, disable))
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What needs a DPA, a GPU, or a dma-buf says so, and leaves everything as it is.
func TestWhatNeedsAnAccelerator(t *testing.T) {
	p := newPair(t, libdoca.Config{})
	c, q := newConsumer(t, p.server, 1), newProducer(t, p.server, 1)
	cell := docatest.NewCell()
	defer cell.Free()
	dma := create(t, "doca_dma_create", p.server.dev)
	mmap := create(t, "doca_mmap_create")
	type refusal struct {
		function  string
		arguments []any
		reason    string
	}
	refusals := []refusal{
		{"doca_ctx_set_datapath_on_dpa", []any{c.ctx, cell}, "no DPA"},
		{"doca_ctx_set_datapath_on_gpu", []any{c.ctx, cell}, "no GPU"},
		{"doca_dma_get_gpu_handle", []any{dma, cell}, "no GPU"},
		{"doca_mmap_set_dpa_memrange", []any{mmap, cell, 0, 4096}, "no DPA"},
		{"doca_mmap_dev_get_dpa_handle", []any{mmap, p.server.dev, cell}, "no DPA"},
		{"doca_mmap_set_dmabuf_memrange", []any{mmap, 0, cell, 0, 8}, "dma-buf"},
		{"doca_dev_accelerate_resource_reclaim", []any{p.server.dev}, "at once"},
		{"doca_comch_consumer_set_completion", []any{c.object, cell, 0}, "no DPA"},
		{"doca_comch_consumer_set_dev_max_num_recv", []any{c.object, 1}, "no DPA"},
		{"doca_comch_consumer_get_dpa_handle", []any{c.object, cell}, "no DPA"},
		{"doca_comch_producer_set_dev_max_num_send", []any{q.object, 1}, "no DPA"},
		{"doca_comch_producer_dpa_completion_attach", []any{q.object, cell}, "no DPA"},
		{"doca_comch_producer_get_dpa_handle", []any{q.object, cell}, "no DPA"},
	}
	objects := len(refusals)
	for _, name := range []string{"create", "destroy", "start", "stop", "set_dpa_thread",
		"set_max_num_consumers", "get_max_num_consumers", "set_max_num_recv", "get_max_num_recv",
		"set_imm_data_len", "get_imm_data_len", "get_dpa_handle"} {
		refusals = append(refusals, refusal{"doca_comch_consumer_completion_" + name,
			[]any{cell, cell}, "no DPA"})
	}
	for i, test := range refusals {
		text := logged(t, func() {
			is(t, call(test.function, test.arguments...), status.NotSupported)
		})
		if strings.Count(text, "\n") != 1 ||
			!strings.Contains(text, test.function+" is not supported: ") ||
			!strings.Contains(text, test.reason) {
			t.Errorf("%s logs %q, expected the reason %q", test.function, text, test.reason)
		}
		if i < objects {
			is(t, call(test.function, append([]any{nil}, test.arguments[1:]...)...),
				status.InvalidValue)
			p.expectMisuse(test.function, "NULL")
		}
	}
	if cell.Result().Uint64() != 0 {
		t.Errorf("a function stored %#x", cell.Result().Uint64())
	}
	ok(t, call("doca_mmap_destroy", mmap))
	ok(t, call("doca_dma_destroy", dma))
	q.destroy()
	c.destroy()
	p.close()
}
