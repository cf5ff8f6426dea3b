// SPDX-License-Identifier: Apache-2.0

// Package pci knows the two notations of PCI addresses.
package pci

import (
	"regexp"
	"strings"
)

// address matches a PCI address with an optional domain, as lspci(8), sysfs, and DOCA print it.
var address = regexp.MustCompile(`^(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])$`)

// Normalize returns the shortest notation of a PCI address: lower case, and without the domain if
// that is 0. So "0000:B1:00.0" becomes "b1:00.0", the form in which devices are compared, stored,
// and listed. Any other name stays as it is.
func Normalize(name string) string {
	parts := address.FindStringSubmatch(name)
	if parts == nil {
		return name
	}
	domain, function := strings.ToLower(parts[1]), strings.ToLower(parts[2])
	if strings.Trim(domain, "0") == "" {
		return function
	}
	return domain + ":" + function
}

// Full returns the notation with a domain, as sysfs uses it: "b1:00.0" becomes "0000:b1:00.0". Any
// other name stays as it is.
func Full(name string) string {
	short := Normalize(name)
	if parts := address.FindStringSubmatch(short); parts != nil && parts[1] == "" {
		return "0000:" + short
	}
	return short
}
