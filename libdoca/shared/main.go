// SPDX-License-Identifier: Apache-2.0

// Command shared is the shared library for programs that are written for DOCA: "make libdoca"
// builds it with -buildmode=c-shared. It takes its configuration from the environment.
package main

func main() {}
