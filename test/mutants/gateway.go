package main

// gatewayMutants break the engine that NBD, vhost, and ublk share, and its locks of ranges.
var gatewayMutants = []mutant{
	{
		name:   "rangelock-overtakes",
		file:   "internal/rangelock/rangelock.go",
		old:    "l.mustWait(w, l.waiting[:i])",
		new:    "l.mustWait(w, nil)",
		breaks: "A change does not overtake one that overlaps it and waits longer.",
		tests:  []test{{"./internal/rangelock", "^TestWhoWaitsLongerGoesFirst$"}},
	},
	{
		name:   "rangelock-touching-ranges-conflict",
		file:   "internal/rangelock/rangelock.go",
		old:    "s.start < h.End && h.Start < s.end",
		new:    "s.start <= h.End && h.Start <= s.end",
		breaks: "Changes of neighboring ranges do not wait for each other.",
		tests:  []test{{"./internal/rangelock", "^TestLocksDoWhatTheirModelDoes$"}},
	},
	{
		name:   "rangelock-grants-one-at-a-time",
		file:   "internal/rangelock/rangelock.go",
		old:    "\t\tgranted = append(granted, w.Granted)\n",
		new:    "\t\tgranted = append(granted, w.Granted)\n\t\tbreak\n",
		breaks: "An unlocked range is granted to all who can have it.",
		tests:  []test{{"./internal/rangelock", "^TestLocksDoWhatTheirModelDoes$"}},
	},
	{
		name:   "rangelock-reads-pass-orphans",
		file:   "internal/rangelock/rangelock.go",
		old:    "(!h.IsRead || s.hold.isOrphan)",
		new:    "!h.IsRead",
		breaks: "A read waits for a change whose owner has gone.",
		tests:  []test{{"./internal/rangelock", "^TestReadsWaitForOrphansOnly$"}},
	},
	{
		name:   "rangelock-reads-wait-for-changes",
		file:   "internal/rangelock/rangelock.go",
		old:    " && (!h.IsRead || s.hold.isOrphan) {",
		new:    " {",
		breaks: "A read does not wait for a change whose owner lives.",
		tests:  []test{{"./internal/rangelock", "^TestReadsWaitForOrphansOnly$"}},
	},
	{
		name:   "rangelock-withdrawal-grants-nothing",
		file:   "internal/rangelock/rangelock.go",
		old:    "\tl.waiting = slices.Delete(l.waiting, i, i+1)\n\tl.grantAndUnlock(h)\n",
		new:    "\tl.waiting = slices.Delete(l.waiting, i, i+1)\n\tl.mu.Unlock()\n",
		breaks: "What has waited behind a change that is withdrawn goes on.",
		tests:  []test{{"./internal/rangelock", "^TestWhoWaitsLongerGoesFirst$"}},
	},
	{
		name:   "gateway-trim-takes-no-lock",
		file:   "cmd/initiator/internal/gateway/operation.go",
		old:    "case nbd.Read, nbd.Cache, nbd.BlockStatus:",
		new:    "case nbd.Read, nbd.Cache, nbd.BlockStatus, nbd.Trim:",
		breaks: "A trim waits for the change of a part of a block that it covers.",
		tests:  []test{{"./cmd/initiator/internal/gateway", "^TestAChangeOfAPartOfABlockIsAlone$"}},
	},
	{
		name:   "gateway-zeroes-take-no-lock",
		file:   "cmd/initiator/internal/gateway/operation.go",
		old:    "case nbd.Read, nbd.Cache, nbd.BlockStatus:",
		new:    "case nbd.Read, nbd.Cache, nbd.BlockStatus, nbd.WriteZeroes:",
		breaks: "Zeroes wait for the change of a part of a block that they cover.",
		tests:  []test{{"./cmd/initiator/internal/gateway", "^TestAChangeOfAPartOfABlockIsAlone$"}},
	},
	{
		name:   "gateway-locks-only-the-bytes-of-a-part",
		file:   "cmd/initiator/internal/gateway/operation.go",
		old:    "rangelock.Hold{Start: op.start, End: op.end,",
		new:    "rangelock.Hold{Start: op.Offset, End: op.Offset + op.Length,",
		breaks: "Changes of two parts of a block do not undo each other.",
		tests:  []test{{"./cmd/initiator/internal/gateway", "^TestAChangeOfAPartOfABlockIsAlone$"}},
	},
	{
		name:   "gateway-flush-passes-orphans",
		file:   "cmd/initiator/internal/gateway/operation.go",
		old:    "op.hold.End = math.MaxUint64",
		new:    "op.hold.End = min(op.end, math.MaxUint64)",
		breaks: "A flush waits for changes whose connection has ended.",
		tests:  []test{{"./cmd/initiator/internal/gateway", "^TestWhatOverlapsAnOrphanWaitsForIt$"}},
	},
	{
		name:   "gateway-forgets-orphans",
		file:   "cmd/initiator/internal/gateway/disk.go",
		old:    "if op.state != locking && !op.hold.IsRead {",
		new:    "if op.state == locking && !op.hold.IsRead {",
		breaks: "What a connection has sent counts until it has ended, although the connection has.",
		tests:  []test{{"./cmd/initiator/internal/gateway", "^TestWhatOverlapsAnOrphanWaitsForIt$"}},
	},
	{
		name:   "gateway-ends-a-lost-change-with-its-session",
		file:   "cmd/initiator/internal/gateway/disk.go",
		old:    "over || op.sentIn != session {",
		new:    "over || op.sentIn <= session {",
		breaks: "What a session has lost counts until the next one has begun.",
		tests:  []test{{"./cmd/initiator/internal/gateway", "^TestAnOrphanOfALostSessionLastsUntilTheNextBegins$"}},
	},
	{
		name:   "gateway-repeats-for-ever",
		file:   "cmd/initiator/internal/gateway/disk.go",
		old:    "op.repeats.Allow(time.Now(), d.export.config.RepeatFor):",
		new:    "(op.repeats.Allow(time.Now(), d.export.config.RepeatFor) || true):",
		breaks: "A request that ends its sessions is given up.",
		tests:  []test{{"./cmd/initiator/internal/gateway", "^TestAnOperationOutlastsManyLossesButNotItsOwn$"}},
	},
	{
		name:   "gateway-does-not-repeat",
		file:   "cmd/initiator/internal/gateway/disk.go",
		old:    "isLost := d.export.config.Repeat",
		new:    "isLost := !d.export.config.Repeat",
		breaks: "A request outlasts the loss of its session.",
		tests:  []test{{"./cmd/initiator/internal/gateway", "^TestAnOperationOutlastsManyLossesButNotItsOwn$"}},
	},
	{
		name:   "gateway-no-scratch-space-for-the-tail",
		file:   "cmd/initiator/internal/gateway/operation.go",
		old:    "if command == nbd.Write && op.isPartial() {",
		new:    "if command == nbd.Write && op.start != op.Offset {",
		breaks: "A write uses its own buffer only.",
		tests: []test{
			{"./cmd/initiator/internal/gateway", "^TestAWriteLeavesTheBuffersOfOthersAlone$"},
		},
	},
	{
		name:   "gateway-drops-fua",
		file:   "cmd/initiator/internal/gateway/operation.go",
		old:    "if op.Flags&nbd.FUA != 0 && op.Command != nbd.Read",
		new:    "if op.Flags&nbd.FUA != 0 && op.Command != nbd.Trim && op.Command != nbd.Read",
		breaks: "FUA reaches the volume with every kind of change.",
		tests:  []test{{"./cmd/initiator/internal/gateway", "^TestFlagsReachTheVolume$"}},
	},
	{
		name:   "gateway-ignores-no-hole",
		file:   "cmd/initiator/internal/gateway/operation.go",
		old:    "if op.Command == nbd.WriteZeroes && op.Flags&nbd.NoHole == 0 {",
		new:    "if op.Command == nbd.WriteZeroes {",
		breaks: "Zeroes that must not be a hole are none.",
		tests:  []test{{"./cmd/initiator/internal/gateway", "^TestFlagsReachTheVolume$"}},
	},
	{
		name:   "gateway-trim-rounds-outwards",
		file:   "cmd/initiator/internal/gateway/operation.go",
		old:    "op.end = max((offset+length)&^(block-1), op.position)",
		new:    "op.end = max((offset+length+block-1)&^(block-1), op.position)",
		breaks: "A trim covers only blocks that are completely in its range.",
		tests: []test{
			{"./cmd/initiator/internal/gateway", "^TestOperationsOfAnyAlignmentDoWhatTheyDoToAnArray$"},
		},
	},
	{
		name:   "gateway-loses-the-tail-of-one-block",
		file:   "cmd/initiator/internal/gateway/operation.go",
		old:    "if span == block {",
		new:    "if span == 2*block {",
		breaks: "A write within one block keeps what is before and behind it.",
		tests: []test{
			{"./cmd/initiator/internal/gateway", "^(TestFlagsReachTheVolume|" +
				"TestOperationsOfAnyAlignmentDoWhatTheyDoToAnArray)$"},
		},
	},
	{
		name:   "gateway-status-tells-what-is-before",
		file:   "cmd/initiator/internal/gateway/operation.go",
		old:    "skipped := min(before, e.Length)",
		new:    "skipped := uint64(0)",
		breaks: "Block status describes nothing that is not in the range.",
		tests: []test{
			{"./cmd/initiator/internal/gateway", "^TestBlockStatusDescribesTheRangeAndNothingElse$"},
		},
	},
	{
		name: "gateway-uses-quarantined-memory",
		file: "cmd/initiator/internal/gateway/disk.go",
		old: `	op.quarantined = result.Quarantined
`,
		new:    "",
		breaks: "Nobody uses memory that the relay may still use.",
		tests: []test{
			{"./cmd/initiator/internal/gateway", "^TestASessionWhoseMemoryIsInQuarantineGetsNewMemory$"},
		},
	},
	{
		name:   "gateway-opens-a-busy-session",
		file:   "cmd/initiator/internal/gateway/disk.go",
		old:    "s.handler == nil && len(s.free) == operationsPerSession {",
		new:    "s.handler == nil {",
		breaks: "A session is used again when its operations have ended.",
		tests: []test{
			{"./cmd/initiator/internal/gateway", "^TestASessionIsUsedAgainWhenItsOperationsHaveEnded$"},
		},
	},
	{
		name: "gateway-moves-the-memory-of-another",
		file: "cmd/initiator/internal/gateway/disk.go",
		old: `	copy(d.memory[d.base:][:size], former[d.base:][:size])
`,
		new: `	copy(d.memory[d.base:][:size], former[:size])
`,
		breaks: "New memory has the data of the operations that are in progress.",
		tests: []test{
			{"./cmd/initiator/internal/gateway", "^TestChangesOfPartsOfBlocksDoNotUndoEachOther$"},
		},
	},
	{
		name: "gateway-buffers-overlap",
		file: "cmd/initiator/internal/gateway/buffers.go",
		old: `		b.free[order].add(index + 1)
`,
		new: `		b.free[order].add(index)
`,
		breaks: "No two operations have the same buffer.",
		tests: []test{
			{"./cmd/initiator/internal/gateway", "^TestBuffersAreDisjointAndUniteAgain$"},
		},
	},
	{
		name:   "gateway-cause-is-ignored",
		file:   "cmd/initiator/internal/gateway/disk.go",
		old:    "case syscall.EPERM, syscall.EROFS:",
		new:    "case syscall.EPERM:",
		breaks: "A client sees why a volume has failed its request.",
		tests: []test{
			{"./cmd/initiator/internal/gateway", "^TestTheCauseOfAFailureDecidesWhatTheClientSees$"},
		},
	},
}
