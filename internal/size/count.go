// SPDX-License-Identifier: Apache-2.0

package size

import "strings"

// ExpandCount writes out a whole number of things that ends in k, M, or G: "10k" as "10000". Unlike
// those of bytes, these count by 1000. It returns any other text as it is.
func ExpandCount(text string) string {
	digits := strings.TrimRight(text, "kKmMgG")
	if digits == "" || len(text)-len(digits) != 1 ||
		strings.Trim(strings.TrimPrefix(digits, "-"), "0123456789") != "" {
		return text
	}
	power := 1 + strings.IndexByte("kmg", text[len(digits)]|0x20)
	return digits + strings.Repeat("000", power)
}
