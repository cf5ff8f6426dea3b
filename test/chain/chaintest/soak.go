// SPDX-License-Identifier: Apache-2.0

//go:build soak

package chaintest

func init() { sessionCount = 1000 }
