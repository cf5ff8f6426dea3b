// SPDX-License-Identifier: Apache-2.0

package main

// supportMutants break what the others stand on: memory, copies, sockets, DMA, retries, TLS, and
// injected faults.
var supportMutants = []mutant{
	{
		name:   "memory-range-wraps",
		file:   "pkg/memory/region.go",
		old:    "if offset > r.length || length > r.length-offset {",
		new:    "if offset+length > r.length {",
		breaks: "A range that wraps around is outside of all memory.",
		tests:  []test{{"./pkg/memory", "^TestRangesAreCheckedWithoutWrappingAround$"}},
	},
	{
		name:   "memory-imports-what-can-shrink",
		file:   "pkg/memory/region_linux.go",
		old:    "if seals&requiredSeals != requiredSeals {",
		new:    "if seals&requiredSeals == 0 {",
		breaks: "A peer cannot take imported memory away by shrinking its file.",
		tests:  []test{{"./pkg/memory", "^TestUnsafeMemoryIsNotImported$"}},
	},
	{
		name:   "memory-imports-a-short-file",
		file:   "pkg/memory/region_linux.go",
		old:    "if stat.Size < 0 || uint64(stat.Size) < length {",
		new:    "if stat.Size < 0 {",
		breaks: "Imported memory is as long as the peer says.",
		tests:  []test{{"./pkg/memory", "^TestUnsafeMemoryIsNotImported$"}},
	},
	{
		name:   "memory-maps-for-writing",
		file:   "pkg/memory/region_linux.go",
		old:    "if access.Has(PCIWrite) {",
		new:    "if access.Has(PCIRead) {",
		breaks: "Memory that is imported for reading cannot be written.",
		tests:  []test{{"./pkg/memory", "^TestMemoryImportedForReadingCannotBeWritten$"}},
	},
	{
		name: "memory-copies-without-guard",
		file: "pkg/memory/copy.go",
		old: `	if dst.untrusted {
		return dst.copyGuarded(to, from, next)
	}
`,
		new:    "",
		breaks: "Memory that its owner takes away is an error, and no crash.",
		tests: []test{
			{"./pkg/memory", "^(TestMemoryTakenAwayByItsOwnerReturnsAnError|" +
				"TestACopyBetweenRegionsReportsTheFault)$"},
		},
	},
	{
		name: "memory-copy-does-not-check-the-source",
		file: "pkg/memory/copy.go",
		old: `	if err := src.checkCopy(srcOffset, length); err != nil {
		return err
	}
`,
		new:    "",
		breaks: "A copy that leaves its source is an error.",
		tests:  []test{{"./pkg/memory", "^TestACopyBetweenRegionsReportsTheFault$"}},
	},
	{
		name:   "memory-blames-any-fault-on-the-region",
		file:   "pkg/memory/copy.go",
		old:    "if !ok || !r.contains(addressed.Addr()) {",
		new:    "if !ok {",
		breaks: "A fault in other memory is not blamed on the region.",
		tests:  []test{{"./pkg/memory", "^TestFaultOfOtherMemoryIsNotBlamedOnTheRegion$"}},
	},
	{
		name:   "memory-loan-ends-with-the-descriptor",
		file:   "pkg/memory/loan_linux.go",
		old:    "unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock)",
		new:    "unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &lock)",
		breaks: "A loan ends when nobody holds the memory any more.",
		tests: []test{
			{"./pkg/memory", "^(TestALoanEndsWithTheLastUseOfThePeer|" +
				"TestAMappingAloneKeepsALoan)$"},
		},
	},
	{
		name:   "memory-loans-share-a-lock",
		file:   "pkg/memory/loan_linux.go",
		old:    "number: r.loans.Add(1)}",
		new:    "number: 1}",
		breaks: "Each export of a region has a loan of its own.",
		tests:  []test{{"./pkg/memory", "^TestALoanEndsWithTheLastUseOfThePeer$"}},
	},
	{
		name:   "blockcopy-moves-overlapping-ranges-forwards",
		file:   "internal/blockcopy/blockcopy_unsafe.go",
		old:    "|| !cpu.X86.HasERMS || overlap(dst[:n], src[:n]) {",
		new:    "|| !cpu.X86.HasERMS {",
		breaks: "A copy within one piece of memory is right even if the ranges overlap.",
		tests:  []test{{"./internal/blockcopy", "^TestOverlappingRangesKeepTheirContent$"}},
	},
	{
		name:   "blockcopy-loads-a-part",
		file:   "internal/blockcopy/blockcopy_unsafe.go",
		old:    "dst, src = dst[ahead:], src[ahead:]",
		new:    "dst, src = dst[ahead:], src[min(ahead+stepBytes, n):]",
		breaks: "A copy copies every byte.",
		tests:  []test{{"./internal/blockcopy", "^TestItCopiesAsCopyDoes$"}},
	},
	{
		name:   "blockcopy-overlap-by-one",
		file:   "internal/blockcopy/blockcopy_unsafe.go",
		old:    "return first < second+uintptr(len(b)) && second",
		new:    "return first+1 < second && second",
		breaks: "Ranges that overlap are recognized.",
		tests:  []test{{"./internal/blockcopy", "^TestOverlappingRangesKeepTheirContent$"}},
	},
	{
		name: "rawsocket-sends-the-start-again",
		file: "internal/linux/rawsocket_unsafe.go",
		old: `			v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
`,
		new:    "",
		breaks: "What a socket did not take at once follows, from where it stopped.",
		tests:  []test{{"./internal/linux", "^TestWhatIsGatheredArrives$"}},
	},
	{
		name: "rawsocket-forgets-what-follows",
		file: "internal/linux/rawsocket_unsafe.go",
		old: `	v.SetLen(int(v.Len) + n)
`,
		new: `	v.SetLen(int(v.Len))
`,
		breaks: "Memory that follows the last vector is sent with it.",
		tests:  []test{{"./internal/linux", "^TestWhatIsGatheredArrives$"}},
	},
	{
		name:   "dma-buffer-outside-of-its-map",
		file:   "pkg/dma/memory_map.go",
		old:    "if err := m.region.CheckRange(address-base, length); err != nil {",
		new:    "if err := m.region.CheckRange(address-base, 0); err != nil {",
		breaks: "A buffer lies within its memory map.",
		tests:  []test{{"./pkg/dma/software", "^TestConformance$"}},
	},
	{
		name:   "dma-map-stops-with-buffers",
		file:   "pkg/dma/memory_map.go",
		old:    "if m.buffers > 0 {",
		new:    "if m.buffers > 1 {",
		breaks: "Memory stays registered while a buffer of it is claimed.",
		tests:  []test{{"./pkg/dma/software", "^TestConformance$"}},
	},
	{
		name: "dma-writes-read-only-memory",
		file: "pkg/dma/memory_map.go",
		old: `		return m.access.Has(memory.PCIWrite)
`,
		new: `		return m.access.Has(memory.PCIRead)
`,
		breaks: "A job writes only to memory that was exported for that.",
		tests:  []test{{"./pkg/dma/software", "^TestConformance$"}},
	},
	{
		name:   "dma-destination-without-room",
		file:   "pkg/dma/context.go",
		old:    "case s.length > room:",
		new:    "case s.length > destination.length:",
		breaks: "A job copies no more than fits behind the data of its destination.",
		tests:  []test{{"./pkg/dma/software", "^TestConformance$"}},
	},
	{
		name: "dma-frees-buffers-of-jobs",
		file: "pkg/dma/context.go",
		old: `	s.addUses(+1)
`,
		new:    "",
		breaks: "The buffers of a job cannot be released before its event.",
		tests:  []test{{"./pkg/dma/software", "^TestConformance$"}},
	},
	{
		name: "dma-failed-job-has-data",
		file: "pkg/dma/context.go",
		old: `		if event.Err == nil {
`,
		new: `		if true {
`,
		breaks: "A job that failed appends nothing.",
		tests:  []test{{"./pkg/dma/software", "^TestConformance$"}},
	},
	{
		name: "dma-sources-start-together",
		file: "pkg/dma/software/engine_linux.go",
		old: `		offset += source.Length
`,
		new:    "",
		breaks: "The sources of a job follow each other in its destination.",
		tests:  []test{{"./pkg/dma/software", "^TestConformance$"}},
	},
	{
		name:   "retry-one-attempt-too-many",
		file:   "pkg/retry/limit.go",
		old:    "c.state == unbounded || done < c.n }",
		new:    "c.state == unbounded || done <= c.n }",
		breaks: "There are no more attempts than the limit.",
		tests: []test{
			{"./pkg/retry", "^(TestAScheduleKeepsToItsPolicy|" +
				"TestAPolicyWithNoAttemptsOrNoTimeFailsAtOnce)$"},
		},
	},
	{
		name:   "retry-infinite-is-unset",
		file:   "pkg/retry/limit.go",
		old:    "func (b Bound) IsSet() bool { return b.state != unset }",
		new:    "func (b Bound) IsSet() bool { return b.state == finite }",
		breaks: "Infinite is a limit that was set.",
		tests:  []test{{"./pkg/retry", "^TestZeroUnsetAndInfiniteAreDistinctLimits$"}},
	},
	{
		name: "retry-pause-ends-behind-the-total",
		file: "pkg/retry/policy.go",
		old: `		pause = min(pause, rest)
`,
		new:    "",
		breaks: "The last attempt starts within the total.",
		tests:  []test{{"./pkg/retry", "^TestAScheduleKeepsToItsPolicy$"}},
	},
	{
		name:   "retry-pauses-overflow",
		file:   "pkg/retry/policy.go",
		old:    "s.pause += min(s.pause, s.policy.LongestPause-s.pause) // doubled, without overflow",
		new:    "s.pause = min(2*s.pause, s.policy.LongestPause)",
		breaks: "The pauses of a long schedule do not overflow.",
		tests:  []test{{"./pkg/retry", "^TestThePausesOfALongScheduleDoNotOverflow$"}},
	},
	{
		name: "retry-ignores-what-the-peer-asks",
		file: "pkg/retry/policy.go",
		old: `	if s.told > pause {
`,
		new: `	if s.told > s.policy.LongestPause && s.told > pause {
`,
		breaks: "An attempt waits as long as the peer has asked.",
		tests:  []test{{"./pkg/retry", "^TestAPostponedAttemptWaitsAsLongAsThePeerAsks$"}},
	},
	{
		name:   "retry-repeats-for-ever",
		file:   "pkg/retry/policy.go",
		old:    "return r.losses <= minRepeats || !ok || now.Sub(r.since) <= limit",
		new:    "return r.losses <= minRepeats || !ok || now.Sub(r.since) <= limit || r.losses > 0",
		breaks: "A request that ends its sessions is given up.",
		tests: []test{
			{"./pkg/retry", "^TestARequestFailsAfterManyLossesThatTakeLongerThanAnOutageMay$"},
		},
	},
	{
		name: "retry-counts-from-the-last-loss",
		file: "pkg/retry/policy.go",
		old: `	if r.losses == 0 {
		r.since = now
	}
`,
		new: `	r.since = now
`,
		breaks: "The time of a request counts from its first loss.",
		tests: []test{
			{"./pkg/retry", "^TestARequestFailsAfterManyLossesThatTakeLongerThanAnOutageMay$"},
		},
	},
	{
		name:   "bucket-has-no-burst",
		file:   "internal/bucket/bucket.go",
		old:    "int64(burst-1)*tokenNs)",
		new:    "int64(burst)*tokenNs)",
		breaks: "A bucket allows no more than its burst at once.",
		tests:  []test{{"./internal/bucket", "^TestABucketAllowsABurstAndThenOnePerInterval$"}},
	},
	{
		name:   "mutualtls-does-not-ask-for-a-certificate",
		file:   "pkg/mutualtls/mutualtls.go",
		old:    "now.authorities, tls.RequireAndVerifyClientCert",
		new:    "now.authorities, tls.RequireAnyClientCert",
		breaks: "One of the authorities has signed the client's certificate.",
		tests:  []test{{"./pkg/mutualtls", "^TestOnlyInvitedClientsAreServed$"}},
	},
	{
		name: "mutualtls-any-name",
		file: "pkg/mutualtls/mutualtls.go",
		old:  "return slices.Contains(allowed, n) }) {",
		new: "return slices.ContainsFunc(allowed, " +
			"func(a Name) bool { return a.text[max(0, len(a.text)-len(n.text)):] == n.text }) }) {",
		breaks: "The client's certificate has one of the allowed names, as a whole.",
		tests:  []test{{"./pkg/mutualtls", "^TestOnlyInvitedClientsAreServed$"}},
	},
	{
		name: "mutualtls-confuses-kinds-of-names",
		file: "pkg/mutualtls/mutualtls.go",
		old:  "return slices.Contains(allowed, n) }) {",
		new: "return slices.ContainsFunc(allowed, " +
			"func(a Name) bool { return a.text == n.text }) }) {",
		breaks: "A DNS name that looks like an address is no address.",
		tests:  []test{{"./pkg/mutualtls", "^TestANameMatchesOnlyItsKind$"}},
	},
	{
		name:   "mutualtls-ignores-revocation",
		file:   "pkg/mutualtls/mutualtls.go",
		old:    "	if err := c.revoked.check(chains); err != nil {\n",
		new:    "	if err := c.revoked.check(nil); err != nil {\n",
		breaks: "A peer whose certificate was revoked is rejected.",
		tests: []test{{"./pkg/mutualtls",
			"^TestARevokedCertificateIsRejectedOnceTheListHasIt$"}},
	},
	{
		name:   "mutualtls-believes-a-forged-list",
		file:   "pkg/mutualtls/revocation.go",
		old:    "	if unsigned != nil {\n		return revocationList{}, fmt",
		new:    "	if unsigned != nil && false {\n		return revocationList{}, fmt",
		breaks: "A list counts only if its authority has signed it.",
		tests:  []test{{"./pkg/mutualtls", "^TestAForgedListIsRefused$"}},
	},
	{
		name:   "target-keeps-sessions-of-relays-that-it-no-longer-accepts",
		file:   "pkg/target/accept.go",
		old:    "	for _, s := range t.admission.open() {\n		if err := s.checkRelay(); err != nil {\n",
		new:    "	for _, s := range t.admission.open() {\n		if err := s.checkRelay(); err != nil && false {\n",
		breaks: "A reload ends the sessions of relays that the target no longer accepts.",
		tests: []test{{"./pkg/target",
			"^TestARelayThatIsNoLongerAcceptedLosesItsSessions$"}},
	},
	{
		name: "mutualtls-any-protocol",
		file: "pkg/mutualtls/mutualtls.go",
		old: `if err := checkProtocol(state, protocol); err != nil {
			return err
		}
`,
		new:    "",
		breaks: "A client of another service is rejected.",
		tests:  []test{{"./pkg/mutualtls", "^TestOnlyInvitedClientsAreServed$"}},
	},
	{
		name:   "mutualtls-old-tls",
		file:   "pkg/mutualtls/mutualtls.go",
		old:    "MinVersion: tls.VersionTLS13,",
		new:    "MinVersion: tls.VersionTLS12,",
		breaks: "Connections use TLS 1.3.",
		tests:  []test{{"./pkg/mutualtls", "^TestOnlyInvitedClientsAreServed$"}},
	},
	{
		name: "mutualtls-forgets-good-files",
		file: "pkg/mutualtls/mutualtls.go",
		old: `	isCurrent := err == nil && now.equal(c.content.stamps)
`,
		new: `	isCurrent := err == nil
`,
		breaks: "A renewed certificate is used by the next connection.",
		tests: []test{
			{"./pkg/mutualtls", "^TestARenewedCertificateIsUsedByTheNextConnection$"},
		},
	},
	{
		name: "mutualtls-waits-for-the-file-system",
		file: "pkg/mutualtls/mutualtls.go",
		old: `	if isBlocked {
`,
		new: `	if isBlocked = false; isBlocked {
`,
		breaks: "A file system that does not respond delays one connection and no other.",
		tests: []test{
			{"./pkg/mutualtls", "^TestABlockedFileSystemDelaysOneConnectionAndNoOther$"},
		},
	},
	{
		name:   "fault-nth-matches-all-after-it",
		file:   "pkg/fault/injector.go",
		old:    "(r.Nth == 0 || number == r.Nth) &&",
		new:    "(r.Nth == 0 || number >= r.Nth) &&",
		breaks: "A rule for the nth operation matches one.",
		tests:  []test{{"./pkg/fault", "^TestConditionsDecideByTheNumberOfTheOperation$"}},
	},
	{
		name:   "fault-counts-while-its-switch-is-off",
		file:   "pkg/fault/injector.go",
		old:    `r.Kind != "" && r.Kind != kind || !r.on.Load() ||`,
		new:    `r.Kind != "" && r.Kind != kind ||`,
		breaks: "A rule whose switch is off does nothing.",
		tests:  []test{{"./pkg/fault", "^TestASwitchIsOffAtFirst$"}},
	},
	{
		name:   "fault-range-touches-its-neighbor",
		file:   "pkg/fault/rule.go",
		old:    "return offset < r.Offset+r.Length && r",
		new:    "return offset <= r.Offset+r.Length && r",
		breaks: "A rule for a range matches operations that touch it.",
		tests: []test{
			{"./pkg/volume/hook", "^TestADroppedChangeSucceedsWithoutBeingCarriedOut$"},
		},
	},
	{
		name: "fault-release-is-lost",
		file: "pkg/fault/injector.go",
		old: `		released := i.released
		i.mu.Unlock()
		if stall.IsOver() {
			return nil
		}
`,
		new: `		released := i.released
		i.mu.Unlock()
`,
		breaks: "A release between the match and the wait ends the wait.",
		tests:  []test{{"./pkg/fault", "^TestEnterWaitsAsLongAsItsRuleSays$"}},
	},
	{
		name:   "program-takes-a-repeated-request-for-force",
		file:   "cmd/internal/program/signals.go",
		old:    "		return now.Sub(e.first) >= e.forceAfter\n",
		new:    "		return true\n",
		breaks: "SIGTERM to a process and its group is one request to end.",
		tests:  []test{{"./cmd/internal/program", "^TestAnEndIsForcedBySIGINTTwiceOrSIGTERMLater$"}},
	},
	{
		name:   "program-is-never-forced-by-interrupts",
		file:   "cmd/internal/program/signals.go",
		old:    "		return e.interrupts > 1\n",
		new:    "		return e.interrupts > 1<<20\n",
		breaks: "SIGINT twice ends a program at once.",
		tests:  []test{{"./cmd/internal/program", "^TestAnEndIsForcedBySIGINTTwiceOrSIGTERMLater$"}},
	},
}
