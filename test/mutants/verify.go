// SPDX-License-Identifier: Apache-2.0

package main

// verifyMutants break the verifier, which has to notice what the others break.
var verifyMutants = []mutant{
	{
		name:   "verify-trusts-the-header",
		file:   "cmd/initiator/internal/verify/block.go",
		old:    "return h.identity == id && h.intact(data)",
		new:    "return h.identity == id",
		breaks: "Every byte of a block is checked.",
		tests: []test{
			{"./cmd/initiator/internal/verify", "^TestEveryKindOfWrongBlockIsToldApartAndLocated$"},
		},
	},
	{
		name:   "verify-checksum-without-the-last-bytes",
		file:   "cmd/initiator/internal/verify/block.go",
		old:    "\t\tdata[offsetZero:])",
		new:    "\t\tdata[offsetZero:len(data)-8])",
		breaks: "Every byte of a block is checked.",
		tests: []test{
			{"./cmd/initiator/internal/verify", "^TestABlockHoldsItsIdentityAndNoOther$"},
		},
	},
	{
		name: "verify-does-not-clear-read-buffers",
		file: "cmd/initiator/internal/verify/worker.go",
		old: `		clear(data) // old content must not pass for data that was read
`,
		new: `		w.stamp(&op, data)
`,
		breaks: "A read that transfers nothing is found.",
		tests: []test{
			{"./cmd/initiator/internal/verify", "^TestAReadThatTransfersNothingIsFound$"},
		},
	},
	{
		name: "verify-accepts-older-passes",
		file: "cmd/initiator/internal/verify/worker.go",
		old:  "!want.holds(content) {",
		new: `!want.holds(content) &&
			!w.identity(block, generation-1).holds(content) {`,
		breaks: "A block of an earlier pass is found.",
		tests: []test{
			{"./cmd/initiator/internal/verify", "^TestEveryKindOfWrongBlockIsToldApartAndLocated$"},
		},
	},
	{
		name:   "verify-ignores-late-writes",
		file:   "cmd/initiator/internal/verify/worker.go",
		old:    "\tif w.kept[index] || bytes.Equal(buffer, w.poison) {",
		new:    "\tif w.kept[index] || bytes.Equal(buffer[:64], w.poison[:64]) {",
		breaks: "A buffer that is written after its request is found.",
		tests: []test{
			{"./cmd/initiator/internal/verify", "^TestABufferThatIsWrittenAfterItsRequestIsFound$"},
		},
	},
	{
		name: "verify-forgives-a-loss-that-is-not-told",
		file: "cmd/initiator/internal/verify/ledger.go",
		old: `	if err == nil && w.losses.due {
`,
		new: `	if false {
`,
		breaks: "A restart whose losses no flush reports is an error.",
		tests: []test{
			{"./cmd/initiator/internal/verify", "^TestALossThatIsNotToldIsAnError$"},
		},
	},
	{
		name:   "verify-accepts-anything-after-a-loss",
		file:   "cmd/initiator/internal/verify/ledger.go",
		old:    "if !kept && durable != unknown && !w.identity(block, durable).holds(content) {",
		new:    "if false {",
		breaks: "After a loss, a block holds its last write or what was flushed before.",
		tests: []test{
			{"./cmd/initiator/internal/verify", "^TestABlockThatALossGarblesIsAFinding$"},
		},
	},
	{
		name: "verify-checks-after-a-failed-write",
		file: "cmd/initiator/internal/verify/worker.go",
		old: `			w.planner.ledger.set(op.first+i, unknown)
		}
	}
	w.tally.fail`,
		new: `			w.planner.ledger.set(op.first+i, w.planner.pass)
		}
	}
	w.tally.fail`,
		breaks: "The content of blocks is unknown after a write to them has failed.",
		tests: []test{
			{"./cmd/initiator/internal/verify", "^TestFailedWritesAreErrorsButNoFindings$"},
		},
	},
	{
		name:   "verify-reads-what-is-being-written",
		file:   "cmd/initiator/internal/verify/ledger.go",
		old:    "if l.busy(block) || (mark != noMark && l.visited(block, mark)) {",
		new:    "if mark != noMark && l.visited(block, mark) {",
		breaks: "No two requests of the verifier overlap.",
		tests: []test{
			{"./cmd/initiator/internal/verify", "^TestPlannedOperationsNeverOverlapAndCoverEveryPass$"},
		},
	},
}
