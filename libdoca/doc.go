// SPDX-License-Identifier: Apache-2.0

// Package libdoca emulates NVIDIA's libdoca, the C library behind DOCA, on any Linux machine.
//
// It has two parts. The skin, in C, holds the objects, checks arguments and states, and calls the
// callbacks of the application. The core, in Go, holds everything that has behavior: devices, the
// exports of memory, DMA, RDMA, and Comch, which is that of pkg/comch/emulated. So a program that
// uses the library meets the relay, and the relay can be tested through its DOCA providers.
//
// The functions are named emu_doca_..., so that no doca_ symbol exists in a program that links this
// package; [Lookup] finds them by their DOCA names. Only tests link it, and the programs
// in cmd/, which test and measure. Configure chooses the release that it answers as, its
// devices, and what it does with misuse.
//
// With the build tag libdoca_shared, the functions have their DOCA names, too, and the environment
// configures them: "make libdoca" builds a shared library for programs that are written for DOCA.
//
// Where DOCA leaves room, the emulation takes the side that is harder for its user: see
// docs/guides/libdoca.md. Without cgo the package is empty.
package libdoca
