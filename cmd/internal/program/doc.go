// Package program is what the command line programs have in common: exit
// codes, the one sentence that explains a failure, signals, and runs on
// threads with progress engines.
package program
