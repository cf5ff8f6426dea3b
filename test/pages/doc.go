// SPDX-License-Identifier: Apache-2.0

// Package pages runs the shell commands of the users' pages as they stand there.
//
// The blocks of a page run in order, in one shell, on a machine of their own: name spaces over a
// copy of this machine, with the addresses, users, files, and programs that the packages would
// bring. In a block of kind "console", lines that begin with "$ " are commands, and the lines behind
// one are what it prints, in which "…" stands for anything.
//
// Comments before a block, which readers of the rendered page do not see, tell what to do with it:
//
//	<!-- not run: REASON -->    It is not run.
//	<!-- in the background -->  It does not end: it runs beside the blocks that follow.
//	<!-- first:                 These commands run before it, for instance to start what the page
//	COMMANDS                    takes for granted.
//	-->
package pages
