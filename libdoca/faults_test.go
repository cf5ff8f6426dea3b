// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A call that fails by request has no effect; the others get all their arguments.
func TestEachThirdCallOfAFunctionFails(t *testing.T) {
	configure(t, libdoca.Config{Faults: []libdoca.Fault{
		{Function: "doca_buf_inventory_buf_get_by_args", Error: status.NoMemory, Every: 3}}})
	dev := openDevice(t, dpuDevice)
	m := newMemory(t, dev, 4096, localReadWrite)
	for i := range 9 {
		at := docatest.At(m.base, 100*i)
		buf, code := docatest.Get("doca_buf_inventory_buf_get_by_args", m.inventory, m.mmap, at, 50,
			docatest.At(at, 10), 7)
		if i%3 == 2 {
			is(t, code, status.NoMemory)
			continue
		}
		ok(t, code)
		data, _ := docatest.Get("doca_buf_get_data", buf.Pointer())
		length, _ := docatest.Get("doca_buf_get_data_len", buf.Pointer())
		if data.Pointer() != docatest.At(at, 10) || length.Uint64() != 7 {
			t.Errorf("the buf has %d bytes at %p", length.Uint64(), data.Pointer())
		}
		release(t, buf.Pointer())
	}
	m.destroy() // nothing was taken by the calls that failed
	ok(t, call("doca_dev_close", dev))
}

// A task that fails by request is submitted with success, and does nothing.
func TestEachSecondTaskFails(t *testing.T) {
	c := newCopier(t, libdoca.Config{Faults: []libdoca.Fault{
		{Task: "doca_dma_task_memcpy", Error: status.IOFailed, Every: 2}}}, 4)
	c.start()
	copy(c.memory.bytes, "0123456789")
	src := c.memory.buf(0, 10, 10)
	for i := range 4 {
		dst := c.memory.buf(100*(i+1), 10, 0)
		task := c.task(src, dst, i)
		ok(t, call("doca_task_submit", task))
		drain(c.pe)
		copied := string(c.memory.bytes[100*(i+1) : 100*(i+1)+10])
		if i%2 == 0 {
			expectKinds(t, docatest.Take(), docatest.Completed)
			if copied != "0123456789" {
				t.Errorf("task %d copied %q", i, copied)
			}
		} else {
			expectKinds(t, docatest.Take(), docatest.Failed)
			is(t, call("doca_task_get_status", task), status.IOFailed)
			if strings.Trim(copied, "\x00") != "" {
				t.Errorf("task %d copied %q although it failed", i, copied)
			}
		}
		call("doca_task_free", task)
		release(t, dst)
	}
	ok(t, call("doca_ctx_stop", c.ctx))
	docatest.Take()
	release(t, src)
	c.destroy()
}

func TestFaultsThatCannotHappenAreRejected(t *testing.T) {
	for text, want := range map[string]string{
		"{faults: [{function: doca_nothing, error: NO_MEMORY}]}":                            "doca_nothing",
		"{faults: [{function: doca_pe_progress, error: NO_MEMORY}]}":                        "doca_pe_progress",
		"{faults: [{task: doca_nothing, error: NO_MEMORY}]}":                                "doca_nothing",
		"{faults: [{function: doca_dma_task_memcpy, error: IO_FAILED}]}":                    "by \"task\"",
		"{faults: [{function: doca_pe_create}]}":                                            "it has no error",
		"{faults: [{function: doca_pe_create, error: IN_USE, every: 0}]}":                   "every: 0",
		"{faults: [{error: NO_MEMORY}]}":                                                    "set one of both",
		"{faults: [{function: doca_pe_create, error: LOST}]}":                               "LOST",
		"{faults: [{function: doca_pe_create, error: DOCA_ERROR_SUCCESS}]}":                 "SUCCESS",
		"{faults: [{function: doca_pe_create, task: doca_dma_task_memcpy, error: IN_USE}]}": "one of both",
		"{faults: [{function: doca_pe_create, error: IN_USE}, " +
			"{function: doca_pe_create, error: AGAIN}]}": "already",
	} {
		config, err := libdoca.ParseConfig([]byte(text))
		if err == nil {
			err = libdoca.Configure(config)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	config, err := libdoca.ParseConfig([]byte(
		"{faults: [{function: doca_pe_create, error: DOCA_ERROR_IN_USE, every: 2}]}"))
	if err != nil {
		t.Fatal(err)
	}
	configure(t, config)
	pe := create(t, "doca_pe_create")
	_, code := docatest.Get("doca_pe_create")
	is(t, code, status.InUse)
	ok(t, call("doca_pe_destroy", pe))
	configure(t, libdoca.Config{}) // which ends the faults
	for range 2 {
		ok(t, call("doca_pe_destroy", create(t, "doca_pe_create")))
	}
}

// Every type of task that contexts have can be made to fail.
func TestEveryTypeOfTaskHasAName(t *testing.T) {
	types := 0
	for _, f := range libdoca.Functions() {
		name, isTask := strings.CutSuffix(f.Name, "_set_conf")
		if !isTask || strings.Contains(name, "doca_compress") || strings.Contains(name, "doca_ec") {
			continue
		}
		for _, side := range []string{"client", "server"} {
			name = strings.Replace(name, "doca_comch_"+side+"_task", "doca_comch_task", 1)
		}
		types++
		err := libdoca.Configure(libdoca.Config{Directory: t.TempDir(),
			Faults: []libdoca.Fault{{Task: name, Error: status.IOFailed}}})
		if errors.Is(err, status.InvalidValue) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if types < 20 {
		t.Errorf("there are only %d types of tasks", types)
	}
	configure(t, libdoca.Config{})
}
