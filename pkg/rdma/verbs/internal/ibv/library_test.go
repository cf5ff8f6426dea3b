// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package ibv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// compile runs the C compiler.
func compile(t *testing.T, arguments ...string) {
	t.Helper()
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "gcc"
	}
	if output, err := exec.Command(compiler, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", compiler, arguments, err, output)
	}
}

// reloadVariable makes this test binary load the libraries and print the error.
const reloadVariable = "ZC_RELAY_TEST_LOAD_LIBRARIES"

func TestMain(m *testing.M) {
	if os.Getenv(reloadVariable) == "" {
		os.Exit(m.Run())
	}
	if err := Load(); err != nil {
		if !errors.Is(err, status.NotSupported) {
			os.Exit(2)
		}
		_, _ = os.Stdout.WriteString(err.Error())
	}
}

// loadFrom returns the error of Load in a process that finds its libraries in directory first.
func loadFrom(t *testing.T, directory string) string {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), reloadVariable+"=1", "LD_LIBRARY_PATH="+directory)
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(output)
}

func TestAMissingLibraryIsNamedWithItsPackage(t *testing.T) {
	directory := t.TempDir()
	broken := []byte("not a library")
	for _, library := range []string{"libibverbs.so.1", "librdmacm.so.1"} {
		if err := os.WriteFile(filepath.Join(directory, library), broken, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text := loadFrom(t, directory)
	for _, want := range []string{
		directory + "/libibverbs.so.1: ", directory + "/librdmacm.so.1: ",
		"install libibverbs1 and librdmacm1", "ibverbs-providers",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("error %q lacks %q", text, want)
		}
	}
}

func TestALibraryWithoutAFunctionIsRejected(t *testing.T) {
	directory := t.TempDir()
	source := filepath.Join(directory, "empty.c")
	if err := os.WriteFile(source, []byte("int zc_empty;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	compile(t, "-shared", "-fPIC", "-o", filepath.Join(directory, "libibverbs.so.1"), source)
	text := loadFrom(t, directory)
	const want = "libibverbs.so.1 has no function ibv_get_device_list@IBVERBS_1.1"
	if !strings.Contains(text, want) {
		t.Errorf("error %q lacks %q", text, want)
	}
}

// fieldsUsed lists the fields by which the package accesses the structures of abi.h.
var fieldsUsed = map[string]string{
	"struct ibv_device": "transport_type name",
	"struct ibv_device_attr": "max_mr_size vendor_id max_qp max_qp_wr max_sge max_cqe max_mr max_qp_rd_atom " +
		"max_qp_init_rd_atom phys_port_cnt",
	"struct ibv_port_attr":    "state active_mtu max_msg_sz link_layer port_cap_flags2",
	"struct ibv_async_event":  "element.qp element.port_num event_type",
	"struct ibv_sge":          "addr length lkey",
	"struct ibv_send_wr":      "wr_id next sg_list num_sge opcode send_flags wr.rdma.remote_addr wr.rdma.rkey ",
	"struct ibv_recv_wr":      "wr_id next sg_list num_sge",
	"struct ibv_wc":           "wr_id status vendor_err byte_len dlid_path_bits",
	"struct ibv_context_ops":  "poll_cq req_notify_cq post_send post_recv",
	"struct ibv_context":      "device ops cmd_fd async_fd",
	"struct ibv_pd":           "context handle",
	"struct ibv_mr":           "addr lkey rkey",
	"struct ibv_comp_channel": "fd",
	"struct ibv_cq":           "context cqe async_events_completed",
	"struct ibv_qp_cap":       "max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data",
	"struct ibv_qp_init_attr": "send_cq recv_cq cap qp_type sq_sig_all",
	"struct ibv_qp_attr": "qp_state path_mtu qp_access_flags ah_attr.is_global ah_attr.grh.sgid_index " +
		"max_rd_atomic max_dest_rd_atomic min_rnr_timer timeout retry_cnt rnr_retry " +
		"rate_limit",
	"struct ibv_qp":             "context qp_num events_completed",
	"struct rdma_event_channel": "fd",
	"struct rdma_cm_id":         "verbs context route.addr.src_addr route.addr.dst_addr port_num qp_type",
	"struct rdma_conn_param": "private_data private_data_len responder_resources initiator_depth flow_control " +
		"retry_count rnr_retry_count srq qp_num",
	"struct rdma_cm_event": "id listen_id event status param.conn",
	"union ibv_gid":        "raw",
}

// layout returns the sizes, offsets, and values of the interface as a program sees them that
// includes the given headers.
func layout(t *testing.T, headers string) string {
	t.Helper()
	abi, err := os.ReadFile("abi.h")
	if err != nil {
		t.Fatal(err)
	}
	program := strings.Builder{}
	program.WriteString("#include <stddef.h>\n#include <stdio.h>\n" + headers + "int main(void) {\n")
	print := func(expression string) {
		fmt.Fprintf(&program, `printf("%s = %%ld\n", (long)(%s));`+"\n", expression, expression)
	}
	for name, fields := range fieldsUsed {
		print("sizeof(" + name + ")")
		for field := range strings.FieldsSeq(fields) {
			print("offsetof(" + name + ", " + field + ")")
		}
	}
	constants := regexp.MustCompile(`\b(IBV|RDMA)_[A-Z_]+\b`)
	for _, constant := range constants.FindAllString(string(abi), -1) {
		print(constant)
	}
	program.WriteString("}\n")
	directory := t.TempDir()
	source, binary := filepath.Join(directory, "layout.c"), filepath.Join(directory, "layout")
	if err := os.WriteFile(source, []byte(program.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	compile(t, "-I.", "-o", binary, source)
	output, err := exec.Command(binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(output), "\n")
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// TestDeclarationsMatchThePublicHeaders is skipped where the headers are not installed.
// test/verbs/run.sh, which requires them, checks that it has run.
func TestDeclarationsMatchThePublicHeaders(t *testing.T) {
	for _, header := range []string{"infiniband/verbs.h", "rdma/rdma_cma.h"} {
		if _, err := os.Stat("/usr/include/" + header); err != nil {
			t.Skipf("needs libibverbs-dev and librdmacm-dev: %v", err)
		}
	}
	ours := layout(t, "#include \"abi.h\"\n")
	theirs := layout(t, "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n")
	if ours == theirs {
		return
	}
	public := strings.Split(theirs, "\n")
	for line := range strings.SplitSeq(ours, "\n") {
		if !slices.Contains(public, line) {
			t.Errorf("abi.h: %s, unlike the public headers", line)
		}
	}
}
