package main

// clientMutants break what the client does when responses, sessions, or relays are missing.
var clientMutants = []mutant{
	{
		name: "client-posts-a-receive-before-it-copies-the-response",
		file: "pkg/client/queue.go",
		old: `	copy(buf[:], consumer.Memory()[r.Offset:][:iomsg.Size])
	if err := consumer.PostReceive(r.Offset, iomsg.Size, r.UserData); err != nil {
		session.failProtocol(fmt.Errorf("post receive: %w", err))
		return false
	}
`,
		new: `	if err := consumer.PostReceive(r.Offset, iomsg.Size, r.UserData); err != nil {
		session.failProtocol(fmt.Errorf("post receive: %w", err))
		return false
	}
	copy(buf[:], consumer.Memory()[r.Offset:][:iomsg.Size])
`,
		breaks: "The client copies a response out of the relay's reach before the relay may write again.",
		tests:  []test{{"./pkg/client", "^TestAResponseIsCopiedBeforeItsReceiveIsPostedAgain$"}},
	},
	{
		name:   "client-accepts-a-response-of-an-older-generation",
		file:   "pkg/client/queue.go",
		old:    "!q.slots[index].outstanding || q.slots[index].generation != generation {",
		new:    "!q.slots[index].outstanding || q.slots[index].generation < generation {",
		breaks: "A relay completes only requests that are outstanding.",
		tests:  []test{{"./pkg/client", "^TestAProtocolViolationEndsTheSessionAndFailsEveryRequestOnce$"}},
	},
	{
		name:   "client-accepts-a-response-to-no-request",
		file:   "pkg/client/queue.go",
		old:    "!q.slots[index].outstanding || q.slots[index].generation != generation {",
		new:    "q.slots[index].generation != generation {",
		breaks: "A request completes once.",
		tests:  []test{{"./pkg/client", "^TestAResponseCompletesItsRequestOnce$"}},
	},
	{
		name:   "client-trusts-the-length-of-a-message",
		file:   "pkg/client/queue.go",
		old:    "	if r.Length != iomsg.Size {\n",
		new:    "	if r.Length > iomsg.Size {\n",
		breaks: "A message of the wrong size ends the session.",
		tests:  []test{{"./pkg/client", "^TestAProtocolViolationEndsTheSessionAndFailsEveryRequestOnce$"}},
	},
	{
		name: "client-looks-at-the-end-after-it-has-polled",
		file: "pkg/client/queue.go",
		old: `	running := consumer.State() == progress.Running
	n := consumer.Poll(q.received[:min(len(results), pollBatch)])
`,
		new: `	n := consumer.Poll(q.received[:min(len(results), pollBatch)])
	running := consumer.State() == progress.Running
`,
		breaks: "Responses that arrive before the end of a session count.",
		tests:  []test{{"./pkg/client", "^TestAResponseThatArrivesBeforeTheEndCounts$"}},
	},
	{
		name:   "client-ignores-its-io-timeout",
		file:   "pkg/client/queue.go",
		old:    "s.outstanding && time.Duration(now-s.since) > limit {",
		new:    "s.outstanding && time.Duration(now-s.since) > 1000*limit {",
		breaks: "A request that the relay does not complete times out.",
		tests: []test{{"./pkg/client",
			"^(TestARelayThatNeverRespondsTimesOut|TestALostRequestTimesOutUnderLoad)$"}},
	},
	{
		name:   "client-looks-at-deadlines-only-when-idle",
		file:   "pkg/client/queue.go",
		old:    "	q.checkDeadlines() // also",
		new:    "	if n == 0 {\n		q.checkDeadlines()\n	} // also",
		breaks: "A request times out even if the relay responds to all others.",
		tests:  []test{{"./pkg/client", "^TestALostRequestTimesOutUnderLoad$"}},
	},
	{
		name:   "client-fails-requests-while-the-relay-has-the-buffers",
		file:   "pkg/client/queue.go",
		old:    "	if evidence == leased {\n",
		new:    "	if false {\n",
		breaks: "A request fails only when it is certain that the relay no longer touches its buffer.",
		tests:  []test{{"./pkg/client", "^TestRequestsFailOnlyWhenTheRelayHasReleasedTheirBuffers$"}},
	},
	{
		name:   "client-hides-a-quarantine",
		file:   "pkg/client/queue.go",
		old:    "Quarantined: evidence == quarantined}",
		new:    "Quarantined: false}",
		breaks: "The application learns that a buffer is in quarantine.",
		tests:  []test{{"./pkg/client", "^TestASilentRelayKeepsTheBuffersInQuarantine$"}},
	},
	{
		name:   "client-takes-silence-for-a-release",
		file:   "pkg/client/memory.go",
		old:    "	evidence := quarantined\n",
		new:    "	evidence := released\n",
		breaks: "A silent relay keeps the buffers of its requests.",
		tests:  []test{{"./pkg/client", "^TestASilentRelayKeepsTheBuffersInQuarantine$"}},
	},
	{
		name:   "client-waits-for-ever-for-a-silent-relay",
		file:   "pkg/client/memory.go",
		old:    "		if time.Now().After(bound) {\n			break\n		}\n",
		new:    "		_ = bound\n",
		breaks: "A silent relay delays the failure of a request by no more than the release timeout.",
		tests:  []test{{"./pkg/client", "^TestASilentRelayKeepsTheBuffersInQuarantine$"}},
	},
	{
		name:   "client-writes-to-memory-in-quarantine",
		file:   "pkg/client/memory.go",
		old:    "		if r.Type.MovesData() {\n			return ErrMemoryReplaced\n		}\n",
		new:    "",
		breaks: "Memory in quarantine is used for no further request.",
		tests:  []test{{"./pkg/client", "^TestAReopenedVolumeLeavesQuarantinedMemoryToTheRelay$"}},
	},
	{
		name:   "client-reopens-with-memory-in-quarantine",
		file:   "pkg/client/memory.go",
		old:    "	if former.quarantine == nil {\n		return nil\n	}\n",
		new:    "	if former.quarantine == nil || v.config.MaxQuarantined > 0 {\n		return nil\n	}\n",
		breaks: "A volume that is reopened exports new memory if the former is in quarantine.",
		tests:  []test{{"./pkg/client", "^TestAReopenedVolumeLeavesQuarantinedMemoryToTheRelay$"}},
	},
	{
		name:   "client-quarantines-without-bound",
		file:   "pkg/client/memory.go",
		old:    "	if held > v.config.MaxQuarantined {\n",
		new:    "	if held > 2*v.config.MaxQuarantined {\n",
		breaks: "The memory in quarantine is bounded.",
		tests:  []test{{"./pkg/client", "^TestQuarantineIsBounded$"}},
	},
	{
		name:   "client-frees-memory-that-a-queue-uses",
		file:   "pkg/client/memory.go",
		old:    "return m.users.Load() == 0 && v.isReturned(m.quarantine)",
		new:    "return v.isReturned(m.quarantine)",
		breaks: "Memory in quarantine is freed when all queues have switched.",
		tests:  []test{{"./pkg/client", "^TestMemoryInQuarantineIsFreedWhenNobodyUsesIt$"}},
	},
	{
		name:   "client-frees-memory-that-the-relay-uses",
		file:   "pkg/client/memory.go",
		old:    "return m.users.Load() == 0 && v.isReturned(m.quarantine)",
		new:    "return m.users.Load() == 0",
		breaks: "Memory in quarantine is freed when the relay has released it.",
		tests:  []test{{"./pkg/client", "^TestMemoryInQuarantineIsFreedWhenNobodyUsesIt$"}},
	},
	{
		name:   "client-takes-an-unknown-lease-for-ended",
		file:   "pkg/client/memory.go",
		old:    "	return returned\n}",
		new:    "	return returned || err != nil\n}",
		breaks: "A lease that cannot be checked has not ended.",
		tests:  []test{{"./pkg/client", "^TestALeaseThatCannotBeCheckedHasNotEnded$"}},
	},
	{
		name:   "client-reopens-another-volume",
		file:   "pkg/client/reopen.go",
		old:    "	case reply.UUID != v.info.UUID:\n",
		new:    "	case false:\n",
		breaks: "A volume is not mistaken for another.",
		tests:  []test{{"./pkg/client", "^TestAReopenedVolumeIsTheSameAndNotSmaller$"}},
	},
	{
		name:   "client-reopens-a-smaller-volume",
		file:   "pkg/client/reopen.go",
		old:    "reply.BlockSize != v.info.BlockSize || reply.Size < v.size.Load():",
		new:    "reply.BlockSize != v.info.BlockSize:",
		breaks: "A volume that has become smaller is not reopened.",
		tests:  []test{{"./pkg/client", "^TestAReopenedVolumeIsTheSameAndNotSmaller$"}},
	},
	{
		name:   "client-reopens-after-a-violation",
		file:   "pkg/client/reopen.go",
		old:    "again := v.canReconnect() && !lost.isProtocolBroken()",
		new:    "again := v.canReconnect()",
		breaks: "A relay that breaks the protocol gets no second session.",
		tests:  []test{{"./pkg/client", "^TestARelayThatBreaksTheProtocolGetsNoSecondSession$"}},
	},
	{
		name:   "client-reports-no-lost-writes",
		file:   "pkg/client/losses.go",
		old:    "from.info.WriteVerifier == to.info.WriteVerifier || acknowledged <= durable {",
		new:    "from.info.WriteVerifier != to.info.WriteVerifier || acknowledged <= durable {",
		breaks: "A flush fails if the target has restarted since writes that were not flushed.",
		tests:  []test{{"./pkg/client", "^TestFlushesReportEveryLossOnceAndNothingElse$"}},
	},
	{
		name:   "client-reports-a-loss-to-one-user-only",
		file:   "pkg/client/losses.go",
		old:    "	if f.seen == a.losses {\n		return nil\n	}\n	a.informLocked",
		new:    "	if f.seen == a.losses || a.reported == a.losses {\n		return nil\n	}\n	a.informLocked",
		breaks: "Every user of a volume learns of a loss from its first flush after it.",
		tests:  []test{{"./pkg/client", "^TestFlushesReportEveryLossOnceAndNothingElse$"}},
	},
	{
		name:   "client-takes-an-older-flush-for-a-later-one",
		file:   "pkg/client/losses.go",
		old:    "a.durable[i] = max(a.durable[i], n)",
		new:    "a.durable[i] = n",
		breaks: "What a flush has made durable stays durable.",
		tests:  []test{{"./pkg/client", "^TestFlushesReportEveryLossOnceAndNothingElse$"}},
	},
	{
		name:   "client-makes-unflushed-writes-durable",
		file:   "pkg/client/losses.go",
		old:    "		cover[i] = other.acknowledged.Load()\n",
		new:    "		cover[i] = other.acknowledged.Load() + 1\n",
		breaks: "A flush makes the writes durable that completed before it, and no others.",
		tests:  []test{{"./pkg/client", "^TestFlushesReportEveryLossOnceAndNothingElse$"}},
	},
	{
		name:   "client-writes-parts-of-blocks-at-the-same-time",
		file:   "pkg/client/synchronous.go",
		old:    "held, err := c.lock(&s.ranges, start, start+block)",
		new:    "held, err := c.lock(&s.ranges, start, start)",
		breaks: "Writes to parts of the same block do not undo each other.",
		tests:  []test{{"./pkg/client", "^TestPartsOfABlockAreWrittenOneAfterTheOther$"}},
	},
	{
		name:   "client-reads-beyond-the-volume",
		file:   "pkg/client/synchronous.go",
		old:    "uint64(length) > v.size.Load()-uint64(off) {",
		new:    "uint64(length) > v.size.Load() {",
		breaks: "Reads stop at the end of the volume, and writes fail there.",
		tests:  []test{{"./test/chain", "^TestReadsStopAtTheEndOfTheVolumeAndWritesFailThere$"}},
	},
}
