// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include "skin.h"
import "C"

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// argumentFile is a file of options: by their long names, in two groups, and what DPDK gets. Others
// are ignored.
type argumentFile struct {
	General map[string]json.RawMessage `json:"doca_general_flags"`
	Program map[string]json.RawMessage `json:"doca_program_flags"`
	DPDK    dpdkFlags                  `json:"doca_dpdk_flags"`
}

// dpdkFlags holds arguments of DPDK.
type dpdkFlags struct {
	Devices []struct {
		Type string `json:"device"`
		ID   string `json:"id"`
		SFT  bool   `json:"sft"`
		HWS  bool   `json:"hws"`
	} `json:"devices"`
	CoreMask *uint64 `json:"core-mask"`
	CoreList string  `json:"core-list"`
	Flags    string  `json:"flags"` // separated by spaces
}

// arguments returns what DPDK gets on its command line.
func (f *dpdkFlags) arguments() (all []string) {
	for _, device := range f.Devices {
		name := device.ID
		if device.Type == "sf" {
			name = "auxiliary:mlx5_core.sf." + device.ID
		}
		if device.SFT {
			name += ",sft_en=1"
		}
		if device.HWS {
			name += ",dv_flow_en=2"
		}
		all = append(all, "-a", name)
	}
	if f.CoreMask != nil {
		all = append(all, "-c", fmt.Sprintf("%#x", *f.CoreMask))
	}
	if f.CoreList != "" {
		all = append(all, "-l", f.CoreList)
	}
	return append(all, strings.Fields(f.Flags)...)
}

//export emuReadArguments
func emuReadArguments(path *C.char, text **C.char, length *C.size_t) C.int {
	f, err := os.Open(C.GoString(path))
	if err != nil {
		return failed("read options", status.Errorf(status.NotFound, "%w", err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfigSize))
	if err == nil {
		b, err = parseArguments(b)
	}
	if err != nil {
		return failed("read options", err)
	}
	*text, *length = (*C.char)(C.CBytes(b)), C.size_t(len(b))
	return C.DOCA_SUCCESS
}

// parseArguments returns the names and values of a file of options, each followed by a zero. An
// array gives its option several times. Arguments of DPDK have no name.
func parseArguments(text []byte) ([]byte, error) {
	var file argumentFile
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, status.Errorf(status.InvalidValue, "parse: %w", err)
	}
	var all bytes.Buffer
	for _, group := range []map[string]json.RawMessage{file.General, file.Program} {
		for _, name := range slices.Sorted(maps.Keys(group)) {
			values := []json.RawMessage{group[name]}
			if bytes.HasPrefix(group[name], []byte("[")) {
				if err := json.Unmarshal(group[name], &values); err != nil {
					return nil, status.Errorf(status.InvalidValue, "%s: %w", name, err)
				}
			}
			for _, value := range values {
				plain, err := plainValue(value)
				if err != nil || name == "" || strings.ContainsRune(name+plain, 0) {
					return nil, status.Errorf(status.InvalidValue,
						"%s: %s is no string, number, or Boolean", name, value)
				}
				all.WriteString(name + "\x00" + plain + "\x00")
			}
		}
	}
	for _, argument := range file.DPDK.arguments() {
		if strings.ContainsRune(argument, 0) {
			return nil, status.Errorf(status.InvalidValue, "%q has a zero", argument)
		}
		all.WriteString("\x00" + argument + "\x00")
	}
	return all.Bytes(), nil
}

// plainValue returns a value as it would be on the command line.
func plainValue(value json.RawMessage) (string, error) {
	switch {
	case bytes.HasPrefix(value, []byte(`"`)):
		var text string
		err := json.Unmarshal(value, &text)
		return text, err
	case bytes.ContainsAny(value[:min(1, len(value))], "{[n"):
		return "", status.InvalidValue
	}
	return string(value), nil
}
