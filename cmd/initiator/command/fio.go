// SPDX-License-Identifier: Apache-2.0

package command

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
)

// fioNames maps names of fio's options to flags of bench that mean the same.
var fioNames = map[string]string{
	"bs": "block-size", "blocksize": "block-size", "iodepth": "queue-depth", "readwrite": "rw",
	"rwmixread": "rwmix", "numjobs": "queues", "size": "length", "ramp_time": "warmup",
	"number_ios": "run-limit-operation-count", "rate_iops": "rate", "randseed": "seed",
	"cpus_allowed": "cpu", "name": "title", "runtime": "runtime", "offset": "offset", "rw": "rw",
}

// fioNamesOfVerify maps names of fio's options to flags of verify that mean the same.
var fioNamesOfVerify = map[string]string{
	"iodepth": "queue-depth", "numjobs": "queues", "size": "length", "randseed": "seed",
	"cpus_allowed": "cpu", "loops": "passes",
}

// fioSeconds are the options whose values are seconds in fio if they have no unit.
var fioSeconds = map[string]bool{"runtime": true, "ramp_time": true, "ramp-time": true}

const (
	needless   = "an option of fio that this command does not need: omit it"
	forBench   = "verify writes and reads every block: \"initiator bench\" has such a flag"
	forLengths = "verify chooses the length of each request: --max-io-size limits it"
	elsewhere  = "the relay's channel determines the volume: " +
		"--device and --command-channel-name choose it"
)

// fioExplanations says why commands lack options that fio's users often give.
var fioExplanations = map[string]string{
	"ioengine": needless, "direct": needless, "invalidate": needless, "thread": needless,
	"group_reporting": needless, "time_based": needless + ", --runtime alone means the same",
	"filename": elsewhere, "output-format": "did you mean --output?",
	"output-file": "redirect standard output, which has nothing but the result: > FILE",
}

// fioExplanationsOfVerify does so for options that bench has.
var fioExplanationsOfVerify = map[string]string{
	"bs": forLengths, "blocksize": forLengths, "block-size": forLengths,
	"rw": forBench, "readwrite": forBench, "rwmixread": forBench, "rwmix": forBench,
	"ramp_time": forBench, "warmup": forBench, "rate_iops": forBench, "rate": forBench,
	"number_ios": forBench, "name": forBench, "title": forBench,
}

// renaming returns a function that makes other names of flags stand for the flags, in fio's
// spelling or with hyphens.
func renaming(names ...map[string]string) func(*pflag.FlagSet, string) pflag.NormalizedName {
	flags := make(map[string]string)
	for _, table := range names {
		for name, flag := range table {
			flags[name], flags[withHyphens(name)] = flag, flag
		}
	}
	return func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if flag, known := flags[name]; known {
			name = flag
		}
		return pflag.NormalizedName(name)
	}
}

func withHyphens(name string) string { return strings.ReplaceAll(name, "_", "-") }

// explainFio makes a command explain why it does not have these flags.
func explainFio(cmd *cobra.Command, explanations ...map[string]string) {
	for _, table := range explanations {
		for name, text := range table {
			program.ExplainFlag(cmd, name, text)
			program.ExplainFlag(cmd, withHyphens(name), text)
		}
	}
}
