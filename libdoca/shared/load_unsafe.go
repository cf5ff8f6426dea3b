// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package main

import "C" // for -buildmode=c-shared

import _ "github.com/zc-relay/zc-relay/libdoca"
