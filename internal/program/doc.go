// Package program is what the command line programs have in common: exit
// codes, the one sentence that explains a failure, signals, logging flags,
// threads with progress engines, and the environment a result was obtained in.
package program
