// SPDX-License-Identifier: Apache-2.0

//go:build complete || soak

package testkit

const isComplete = true
