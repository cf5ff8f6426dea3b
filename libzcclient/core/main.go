// SPDX-License-Identifier: Apache-2.0

// Command core is the private part of libzcclient, the C library: the package client, with
// functions that C calls. libzcclient/scripts/build.sh builds it with -buildmode=c-shared, and
// libzcclient.so loads it when a program opens its first volume. core.h has the functions.
package main

func main() {}
