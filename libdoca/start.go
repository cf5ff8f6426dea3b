// SPDX-License-Identifier: Apache-2.0

//go:build cgo && !libdoca_shared

package libdoca

func init() {
	if err := Configure(Config{}); err != nil {
		panic(err)
	}
}
