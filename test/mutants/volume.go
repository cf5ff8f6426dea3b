// SPDX-License-Identifier: Apache-2.0

package main

// volumeMutants break volumes: content, durability, what a failed volume rejects, and who owns a
// shared one.
var volumeMutants = []mutant{
	{
		name:   "volume-short-read-of-cache",
		file:   "pkg/volume/file_store_linux.go",
		old:    "return errno == 0 && n == len(r.Buffer)",
		new:    "return errno == 0 && n > 0",
		breaks: "A read returns all of its data, although only a part of it was in the page cache.",
		tests:  []test{{"./pkg/volume", "^TestVolumeFailsOnceItsFileIsTruncated$"}},
	},
	{
		name:   "volume-trim-ignores-fua",
		file:   "pkg/volume/file_store_linux.go",
		old:    "if r.Err == nil && r.ForceUnitAccess {",
		new:    "if r.Err == nil && r.ForceUnitAccess && r.Operation == iomsg.OpWrite {",
		breaks: "A trim and a write of zeroes with FUA are durable before they complete.",
		tests:  []test{{"./pkg/volume", "^TestForcedChangesAreDurableWhenTheyComplete$"}},
	},
	{
		name: "volume-completes-fua-before-sync",
		file: "pkg/volume/file_store_linux.go",
		old: `			s.flushes.submit(r)
			continue
		}`,
		new:    "\t\t}",
		breaks: "A write with FUA is durable before it completes.",
		tests: []test{
			{"./pkg/volume", "^(TestForcedWriteFailsIfItCannotBeMadeDurable|" +
				"TestForcedChangesAreDurableWhenTheyComplete)$"},
		},
	},
	{
		name: "volume-failed-flush-is-forgotten",
		file: "pkg/volume/file_store_linux.go",
		old: `	return s.fail(&failure{
		rejects: rejectChanges,`,
		new: `	return error(&failure{
		rejects: rejectChanges,`,
		breaks: "After a failed flush every later flush fails as well.",
		tests: []test{
			{"./pkg/volume", "^TestVolumeAcceptsNoMoreWritesAfterAFailedFlush$"},
		},
	},
	{
		name:   "volume-failed-flush-fails-reads",
		file:   "pkg/volume/health_linux.go",
		old:    "if f == nil || isRead && f.rejects < rejectAll {",
		new:    "if f == nil {",
		breaks: "A volume whose flush has failed still serves reads.",
		tests: []test{
			{"./pkg/volume", "^TestVolumeAcceptsNoMoreWritesAfterAFailedFlush$"},
		},
	},
	{
		name:   "volume-truncation-rejects-changes-only",
		file:   "pkg/volume/file_store_linux.go",
		old:    "rejects: rejectAll,\n\t\tmessage: \"another",
		new:    "rejects: rejectChanges,\n\t\tmessage: \"another",
		breaks: "A truncated volume fails reads, too.",
		tests:  []test{{"./pkg/volume", "^TestVolumeFailsOnceItsFileIsTruncated$"}},
	},
	{
		name:   "volume-flush-does-not-compare-sizes",
		file:   "pkg/volume/file_store_linux.go",
		old:    "return errors.Join(s.checkPlace(), s.checkSize())",
		new:    "return s.checkPlace()",
		breaks: "A flush of a truncated volume fails.",
		tests:  []test{{"./pkg/volume", "^TestVolumeFailsOnceItsFileIsTruncated$"}},
	},
	{
		name:   "volume-flush-does-not-look-for-its-file",
		file:   "pkg/volume/file_store_linux.go",
		old:    "return errors.Join(s.checkPlace(), s.checkSize())",
		new:    "return s.checkSize()",
		breaks: "A flush of a volume whose file is gone fails.",
		tests:  []test{{"./pkg/volume", "^TestAVolumeFailsOnceItsFileIsGone$"}},
	},
	{
		name:   "volume-keeps-the-milder-failure",
		file:   "pkg/volume/health_linux.go",
		old:    "earlier.rejects >= f.rejects",
		new:    "earlier.rejects >= rejectChanges",
		breaks: "A volume that is truncated after a failed flush fails reads, too.",
		tests:  []test{{"./pkg/volume", "^TestATruncationAfterAFailedFlushFailsReadsToo$"}},
	},
	{
		name: "volume-flush-does-not-look-for-a-shutdown",
		file: "pkg/volume/file_store_linux.go",
		old: `	if cause == nil {
		cause = readNothing(s.fd)
	}
`,
		new:    "",
		breaks: "A flush fails if the file system has shut itself down.",
		tests: []test{
			{"./pkg/volume", "^TestNothingIsDurableOnAFileSystemThatShutsDown$"},
		},
	},
	{
		name:   "volume-last-block-does-not-compare-sizes",
		file:   "pkg/volume/file_store_linux.go",
		old:    "if r.Offset+r.Length == s.size.Load() {",
		new:    "if r.Offset+r.Length > s.size.Load() {",
		breaks: "A write of the last block does not hide that the file was truncated.",
		tests:  []test{{"./pkg/volume", "^TestVolumeFailsOnceItsFileIsTruncated$"}},
	},
	{
		name: "volume-change-ignores-rejection",
		file: "pkg/volume/file_store_linux.go",
		old: `func (s *fileStore) change(r *Request) error {
	if err := s.rejection(false); err != nil {`,
		new: `func (s *fileStore) change(r *Request) error {
	if err := s.rejection(true); err != nil {`,
		breaks: "What a queue accepted before a flush failed is not written after it.",
		tests: []test{
			{"./pkg/volume", "^TestAChangeThatWaitedForAFailedFlushIsRejected$"},
		},
	},
	{
		name:   "volume-zeroes-without-hole-leave-a-hole",
		file:   "pkg/volume/file_store_linux.go",
		old:    "if done && !deallocate {",
		new:    "if done && deallocate {",
		breaks: "Writing zeroes without deallocation keeps the space allocated.",
		tests:  []test{{"./pkg/volume", "^TestOnlyWhatMayBeAHoleReleasesItsSpace$"}},
	},
	{
		name: "volume-zeroes-fallback-writes-one-piece",
		file: "pkg/volume/file_store_linux.go",
		old: `offset, length = offset+n, length-n
`,
		new: `offset, length = offset+n, 0
`,
		breaks: "Zeroes are written to the whole range on a file system without support.",
		tests: []test{
			{"./pkg/volume", "^(TestFileVolumeConformsWithoutFileSystemSupport|" +
				"TestZeroesCoverTheWholeRangeWithoutFileSystemSupport)$"},
		},
	},
	{
		name:   "volume-trim-is-not-advice",
		file:   "pkg/volume/file_store_linux.go",
		old:    "if errors.Is(err, unix.EOPNOTSUPP) {",
		new:    "if errors.Is(err, unix.ENOSYS) {",
		breaks: "An operation that the file system does not support is done in another way.",
		tests:  []test{{"./pkg/volume", "^TestOnlyWhatMayBeAHoleReleasesItsSpace$"}},
	},
	{
		name: "volume-short-write-is-success",
		file: "pkg/volume/file_store_linux.go",
		old: `		if err != nil {
			return s.ioError("write"`,
		new: `		if err != nil && done == 0 {
			return s.ioError("write"`,
		breaks: "A write that the file system carries out only in part fails.",
		tests:  []test{{"./pkg/volume", "^TestFullFileSystemFailsOnlyThatWrite$"}},
	},
	{
		name: "volume-opens-without-lock",
		file: "pkg/volume/file_linux.go",
		old: `	how := unix.LOCK_EX
`,
		new: `	how := unix.LOCK_SH
`,
		breaks: "A file has one writer.",
		tests:  []test{{"./pkg/volume", "^TestFileIsOpenedByOneWriterOrSeveralReaders$"}},
	},
	{
		name: "volume-close-does-not-flush",
		file: "pkg/volume/file_store_linux.go",
		old: `	if !s.readOnly {
		err = errors.Join(err, s.makeDurable())`,
		new: `	if s.readOnly {
		err = errors.Join(err, s.makeDurable())`,
		breaks: "A clean end is no loss: closing a volume makes its content durable.",
		tests:  []test{{"./pkg/volume", "^TestForcedWriteFailsIfItCannotBeMadeDurable$"}},
	},
	{
		name: "volume-shrinks-before-its-size",
		file: "pkg/volume/file_store_linux.go",
		old: `	s.size.Store(min(before, bytes))
`,
		new:    "",
		breaks: "A volume that is made smaller on request does not count as truncated.",
		tests:  []test{{"./pkg/volume", "^TestAFileVolumeGrowsUnderOpenQueues$"}},
	},
	{
		name:   "volume-grows-while-failed",
		file:   "pkg/volume/file_store_linux.go",
		old:    "usable > before && s.rejection(false) == nil {",
		new:    "usable > before {",
		breaks: "A failed volume does not grow.",
		tests:  []test{{"./pkg/volume", "^TestAFailedVolumeDoesNotGrow$"}},
	},
	{
		name: "volume-failure-keeps-the-witness",
		file: "pkg/volume/file_store_linux.go",
		old: `	s.witness.renounce()
`,
		new:    "",
		breaks: "After a failed flush, the next process reports a loss.",
		tests:  []test{{"./pkg/volume", "^TestAFailedFlushEndsTheWriteVerifier$"}},
	},
	{
		name:   "witness-of-another-file",
		file:   "pkg/volume/witness_linux.go",
		old:    "if err := isSameObject(kept, file); err != nil {",
		new:    "if err := isSameObject(file, file); err != nil {",
		breaks: "The witness of another file proves nothing.",
		tests:  []test{{"./pkg/volume", "^TestTheWitnessOfAnotherFileProvesNothing$"}},
	},
	{
		name:   "witness-does-not-ask-the-kernel",
		file:   "pkg/volume/witness_linux.go",
		old:    "return unix.Fdatasync(fd) })",
		new:    "return nil })",
		breaks: "A write-back that failed between two processes ends the write verifier.",
		tests: []test{
			{"./pkg/volume", "^TestALossBetweenTwoProcessesEndsTheWriteVerifier$"},
		},
	},
	{
		name: "health-does-not-end-a-series",
		file: "pkg/volume/health_linux.go",
		old: `			c.series = false
`,
		new:    "",
		breaks: "A failure after a series has ended is logged again.",
		tests: []test{
			{"./pkg/volume", "^TestFailuresAreLoggedOncePerSeriesAndThenCounted$"},
		},
	},
	{
		name:   "extents-partial-hole-is-a-hole",
		file:   "pkg/volume/extents_linux.go",
		old:    "hole := min(uint64(data), end) &^ (block - 1)",
		new:    "hole := min((uint64(data)+block-1)&^(block-1), end)",
		breaks: "A block that is a hole only in part counts as data.",
		tests:  []test{{"./pkg/volume", "^TestABlockThatIsAHoleInPartIsData$"}},
	},
	{
		name: "extents-do-not-compare-sizes-first",
		file: "pkg/volume/file_store_linux.go",
		old: `	if err := s.checkSize(); err != nil {
		return err
	}
	if err := findExtents(s.fd, r); err != nil {
		return s.ioError("find extents in", r.Offset, r.Length, err)
	}
	return s.checkSize()`,
		new: `	if err := findExtents(s.fd, r); err != nil {
		return s.ioError("find extents in", r.Offset, r.Length, err)
	}
	return nil`,
		breaks: "What another program has cut off is an error, and no hole.",
		tests:  []test{{"./pkg/volume", "^TestWhatWasCutOffIsNoHole$"}},
	},
	{
		name:   "identity-ignores-the-generation",
		file:   "pkg/volume/identity_linux.go",
		old:    "stat.Ino, born, generation), nil",
		new:    "stat.Ino, born[:0], 0*generation), nil",
		breaks: "A file that reuses the inode of a removed one has another UUID.",
		tests:  []test{{"./pkg/volume", "^TestReusedInodeHasAnotherUUID$"}},
	},
	{
		name: "identity-of-a-partition-is-that-of-its-disk",
		file: "pkg/volume/identity_linux.go",
		old: `		partition += " at " + attribute(directory, "start")
`,
		new: `		partition = ""
`,
		breaks: "Two partitions of a disk have different UUIDs.",
		tests:  []test{{"./pkg/volume", "^TestDiskIsIdentifiedByItsHardware$"}},
	},
	{
		name: "pause-guard-starts-without-asking",
		file: "pkg/volume/pause_guard_linux.go",
		old: `			g.parked = append(g.parked, r)
			g.mu.Unlock()
			return
`,
		new:    "",
		breaks: "A program that stood still starts nothing before it knows that it owns the volume.",
		tests: []test{
			{"./pkg/volume", "^TestAfterAPauseNothingHappensBeforeTheOwnerIsKnown$"},
		},
	},
	{
		name: "pause-guard-completes-without-asking",
		file: "pkg/volume/pause_guard_linux.go",
		old: `			g.held = append(g.held, r)
			g.mu.Unlock()
			return
`,
		new:    "",
		breaks: "A program that stood still completes nothing before it knows that it owns the volume.",
		tests: []test{
			{"./pkg/volume", "^TestAfterAPauseNothingHappensBeforeTheOwnerIsKnown$"},
		},
	},
	{
		name:   "pause-guard-counts-from-the-end-of-the-check",
		file:   "pkg/volume/pause_guard_linux.go",
		old:    "g.alive.Store(int64(begun)) // the check itself may have been interrupted",
		new:    "g.alive.Store(int64(g.now()))",
		breaks: "A check during which the program stood still proves nothing.",
		tests: []test{
			{"./pkg/volume", "^TestACheckDuringWhichTheProgramStandsStillProvesNothing$"},
		},
	},
	{
		name: "pause-guard-forgets-the-loss",
		file: "pkg/volume/pause_guard_linux.go",
		old: `		g.alive.Store(never)
`,
		new: `		g.alive.Store(int64(begun))
`,
		breaks: "After the loss of a volume no request is carried out.",
		tests: []test{
			{"./pkg/volume", "^TestAfterAPauseNothingHappensBeforeTheOwnerIsKnown$"},
		},
	},
	{
		name: "contended-serves-while-it-is-lost",
		file: "pkg/volume/stand_by.go",
		old: `	v.ownership.set(standByError(reason))
	for {`,
		new:    "\tfor {",
		breaks: "A program that has lost its volume is a stand-by at once.",
		tests:  []test{{"./pkg/volume", "^TestAStoppedOwnerWritesNothingAfterATakeOver$"}},
	},
	{
		name:   "contended-idle-with-users",
		file:   "pkg/volume/ownership.go",
		old:    "return o.users == 0 && time.Since(o.idle) > idleBound",
		new:    "return time.Since(o.idle) > idleBound",
		breaks: "An owner that is in use does not hand its volume over.",
		tests: []test{
			{"./pkg/volume", "^TestAnUnusedOwnerHandsTheVolumeOverWhereItIsWanted$"},
		},
	},
	{
		name:   "queue-closes-with-requests",
		file:   "pkg/volume/queue_linux.go",
		old:    "if q.running > 0 {",
		new:    "if q.running > q.depth {",
		breaks: "A queue with requests in flight cannot be closed.",
		tests: []test{
			{"./pkg/volume", "^(TestMemoryVolumeConforms|TestFileVolumeConforms)$"},
		},
	},
	{
		name:   "queue-sleeps-on-completions",
		file:   "pkg/volume/queue_linux.go",
		old:    "if q.ready.isEmpty() && q.completed.isEmpty() && (q",
		new:    "if q.ready.isEmpty() && (q",
		breaks: "A queue does not sleep while a completed request waits.",
		tests: []test{
			{"./pkg/volume", "^(TestNoWakeUpIsLostBetweenQueuesAndPool|" +
				"TestFileVolumeConforms)$"},
		},
	},
	{
		name: "queue-pool-does-not-look-again",
		file: "pkg/volume/queue_linux.go",
		old: `		found := p.dequeue(batch)
`,
		new: `		found := false
`,
		breaks:   "A request that arrives while a goroutine goes to sleep is carried out.",
		tests:    []test{{"./pkg/volume", "^TestNoWakeUpIsLostBetweenQueuesAndPool$"}},
		survives: "The request has to arrive between two instructions of the goroutine.",
	},
	{
		name:   "memory-volume-clears-too-little",
		file:   "pkg/volume/memory_linux.go",
		old:    "clearInSteps(m.region.Bytes()[data:offset])",
		new:    "clearInSteps(m.region.Bytes()[data : offset-1])",
		breaks: "A trim of a volume in memory clears the whole range.",
		tests:  []test{{"./pkg/volume", "^TestLargeRangesOfMemoryAreZeroedExactly$"}},
	},
	{
		name:   "volume-request-may-end-behind-the-volume",
		file:   "pkg/volume/volume.go",
		old:    "request.Offset > i.Size-request.Length {",
		new:    "request.Offset > i.Size {",
		breaks: "A request ends within the volume.",
		tests:  []test{{"./pkg/volume", "^TestFileVolumeConforms$"}},
	},
	{
		name:   "volume-read-only-writes",
		file:   "pkg/volume/volume.go",
		old:    "if i.ReadOnly && request.Operation.Changes() {",
		new:    "if i.ReadOnly && request.Operation == iomsg.OpWrite {",
		breaks: "A volume that is open for reading only is not changed.",
		tests:  []test{{"./pkg/volume", "^TestReadOnlyFileVolumeOnlyReads$"}},
	},
	{
		name:   "volume-buffer-longer-than-request",
		file:   "pkg/volume/volume.go",
		old:    "if uint64(len(request.Buffer)) != request.Length {",
		new:    "if uint64(len(request.Buffer)) < request.Length {",
		breaks: "A request changes no more of the volume than its range.",
		tests: []test{
			{"./pkg/volume", "^(TestFileVolumeConforms|TestMemoryVolumeConforms)$"},
		},
	},

	// Nothing stops because of one bad part.
	{
		name:   "volume-that-cannot-be-opened-is-given-up",
		file:   "pkg/volume/late.go",
		old:    "			due = time.After(pause)\n",
		new:    "			due = time.After(pause + 1<<61)\n",
		breaks: "A volume that cannot be opened is served without a hand when it can be.",
		tests:  []test{{"./pkg/volume", "^TestAVolumeThatCannotBeOpenedIsOpenedLater$"}},
	},
	{
		name:   "volume-whose-user-has-given-up-is-tried-again",
		file:   "pkg/volume/late.go",
		old:    "		if refuses(err) {\n",
		new:    "		if refuses(err) && attempt < 0 {\n",
		breaks: "A volume that is configured wrongly is not tried again and again.",
		tests:  []test{{"./pkg/volume", "^TestARefusedVolumeWaitsForARetry$"}},
	},
	{
		name:   "volume-error-repeats-a-secret",
		file:   "pkg/volume/spec.go",
		old:    "		if hasValue && !slices.Contains(shownOptions, word) {\n",
		new:    "		if hasValue && slices.Contains(shownOptions, option) {\n",
		breaks: "Errors and logs do not repeat what may be a secret.",
		tests:  []test{{"./pkg/volume", "^TestAnErrorRepeatsNoSecret$"}},
	},
	{
		name:   "volume-that-is-configured-wrongly-does-not-end-the-start",
		file:   "cmd/target/command/volumes.go",
		old:    "err != nil && isNoneLeft {\n",
		new:    "err != nil && !isNoneLeft {\n",
		breaks: "A start with volumes that no attempt can open fails.",
		tests: []test{{"./cmd/target/command",
			"^TestVolumesThatAreConfiguredWronglyEndTheStart$"}},
	},
	{
		name:   "volume-that-is-configured-wrongly-stays-away",
		file:   "cmd/target/command/volumes.go",
		old:    "reason == nil || volume.IsMisconfigured(reason) {\n",
		new:    "reason == nil {\n",
		breaks: "A volume whose storage was not there is served when it is.",
		tests: []test{{"./cmd/target/command",
			"^TestAVolumeThatIsConfiguredWronglyStopsNoOther$"}},
	},
	{
		name:   "volume-that-is-opened-after-its-close-stays-open",
		file:   "pkg/volume/late.go",
		old:    "				if o := <-ended; o.err == nil {",
		new:    "				if o := <-ended; o.err != nil {",
		breaks: "Storage that answers after a volume was removed does not keep it locked.",
		tests:  []test{{"./pkg/volume", "^TestAVolumeThatIsOpenedAfterItsCloseIsClosedAgain$"}},
	},
	{
		name:   "target-forgets-the-witness-of-a-volume-that-is-not-open",
		file:   "cmd/target/command/volumes.go",
		old:    "		if !s.isOpen() {\n			return\n",
		new:    "		if !s.isOpen() {\n			continue\n",
		breaks: "A volume that can be opened again later still proves that nothing was lost.",
		tests:  []test{{"./test/e2e", "^TestTheWitnessOfAVolumeWaitsUntilItCanBeOpened$"}},
	},
	{
		name:   "file-stand-by-creates-the-file",
		file:   "pkg/volume/file_linux.go",
		old:    "		open = b.openContent\n",
		new:    "		open = b.openFile\n",
		breaks: "A stand-by serves the content that it has waited for, or nothing.",
		tests:  []test{{"./pkg/volume", "^TestAStandByCreatesNoFile$"}},
	},
	{
		name:   "file-of-several-targets-does-not-stand-by",
		file:   "pkg/volume/file_linux.go",
		old:    "return b.FencedByOperator && !b.ReadOnly",
		new:    "return false",
		breaks: "A target that finds the file of several targets locked takes over when it is free.",
		tests:  []test{{"./pkg/volume", "^TestATargetStandsByWhileAnotherHasTheFile$"}},
	},
}
