// SPDX-License-Identifier: Apache-2.0

package command

import (
	"math/rand/v2"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
)

// rangeFlags are the flags of commands that work on a range of the volume with data of their own:
// bench and verify.
type rangeFlags struct {
	set            *pflag.FlagSet
	queue          queueFlags
	offset, length size.Bytes
	seed           uint64
	reconnect      reconnectFlags
	guard          guard
	trace          traceFlags
}

func (r *rangeFlags) add(cmd *cobra.Command, seedHelp string) {
	f := cmd.Flags()
	r.set = f
	r.queue.add(f, client.DefaultDepth)
	f.Var(&r.offset, "offset", "start of the range of the volume to use")
	f.Var(&r.length, "length", "length of the range (default: to the end of the volume)")
	f.Uint64Var(&r.seed, "seed", 0, seedHelp)
	r.reconnect.add(f)
	r.guard.add(f, "work on the volume although another client has it open, or although it "+
		"carries a file system, a partition table, or the like")
	r.trace.add(f)
	cmd.MarkFlagsMutuallyExclusive("queues", "cpu")
}

// rangeLength returns the value of --length: 0 means up to the end of the volume, which only the
// absence of the flag can ask for.
func (r *rangeFlags) rangeLength() (uint64, error) {
	if r.length == 0 && r.set.Changed("length") {
		return 0, program.Usagef("--length 0 is an empty range: " +
			"omit it to use everything up to the end of the volume")
	}
	return uint64(r.length), nil
}

// chooseSeed returns the value of --seed. Without it, it draws one that is short enough to type,
// and exact in every JSON parser.
func (r *rangeFlags) chooseSeed() uint64 {
	if r.set.Changed("seed") {
		return r.seed
	}
	return uint64(rand.Uint32())
}
