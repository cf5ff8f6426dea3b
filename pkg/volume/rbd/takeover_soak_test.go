// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo && soak

package rbd_test

func init() { takeOverRounds = 100 }
