// SPDX-License-Identifier: Apache-2.0

package main

// rdmaMutants break RDMA in software: what a peer may reach, what arrives, and in which order.
var rdmaMutants = []mutant{
	{
		name: "iwarp-crc-is-not-checked",
		file: "pkg/rdma/iwarp/verify.go",
		old: `		if !validCRC(frame) {
			return violationCRC
		}
`,
		new:    "",
		breaks: "Nothing that the network has damaged takes effect.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestWrongCRCCompletesNothing$"}},
	},
	{
		name: "iwarp-crc-of-partial-frames-is-not-checked",
		file: "pkg/rdma/iwarp/verify.go",
		old: `		if !validCRC(frame) {
`,
		new: `		if &frame[0] != &p.bytes[0] && !validCRC(frame) {
`,
		breaks: "A damaged frame that arrives in pieces takes no effect.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestDamageInAnyPieceOfTheStreamIsFound$"}},
	},
	{
		name:   "iwarp-crc-before-the-payload",
		file:   "pkg/rdma/iwarp/transmit.go",
		old:    "crc = updateCRC(updateCRC(updateCRC(0, header), source), trailer)",
		new:    "crc = updateCRC(updateCRC(updateCRC(0, source), header), trailer)",
		breaks: "The CRC covers the frame as it is sent.",
		tests: []test{
			{"./pkg/rdma/iwarp", "^(TestEitherSideCanEnableCRC|" +
				"TestRandomRequestsMatchModel)$"},
		},
	},
	{
		name:   "iwarp-one-side-cannot-enable-crc",
		file:   "pkg/rdma/iwarp/mpa.go",
		old:    "useCRC: request.crc || wantCRC,",
		new:    "useCRC: request.crc && wantCRC,",
		breaks: "CRCs are used if either side asks for them.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestEitherSideCanEnableCRC$"}},
	},
	{
		name:   "iwarp-sends-memory-that-may-change-after-its-crc",
		file:   "pkg/rdma/iwarp/connection.go",
		old:    "c.copyUntrusted = e.useCRC || e.socket.stream != nil",
		new:    "c.copyUntrusted = e.socket.stream != nil",
		breaks: "Memory of another process does not change between its CRC and its transmission.",
		tests: []test{
			{"./pkg/rdma/iwarp", "^TestInaccessibleMemoryFailsOnlyItsConnection$"},
		},
	},
	{
		name:   "iwarp-padding",
		file:   "pkg/rdma/iwarp/fpdu.go",
		old:    "func padLength(ulpdu int) int { return -(lengthBytes + ulpdu) & 3 }",
		new:    "func padLength(ulpdu int) int { return -ulpdu & 3 }",
		breaks: "Frames have a multiple of four bytes.",
		tests: []test{
			{"./pkg/rdma/iwarp", "^(TestFramesAreAlignedWithValidCRC|" +
				"TestTaggedFramesMatchGolden)$"},
		},
	},
	{
		name: "iwarp-negative-payload",
		file: "pkg/rdma/iwarp/fpdu.go",
		old: `	if p.payload() < 0 {
		return prefix{}, violationLength
	}
`,
		new:    "",
		breaks: "A frame that is shorter than its header is a violation.",
		tests: []test{
			{"./pkg/rdma/iwarp", "^(TestMalformedPrefixesAreViolations|" +
				"TestViolationsAreTerminated)$"},
		},
	},
	{
		name: "iwarp-write-to-another-domain",
		file: "pkg/rdma/iwarp/receive.go",
		old: `	if refusal != registration.Granted {
		return writeRefusals[refusal]
	}
	r.region,`,
		new: `	if refusal == registration.OtherDomain {
		region = c.Domain.Table().Lookup(h.stag)
	} else if refusal != registration.Granted {
		return writeRefusals[refusal]
	}
	r.region,`,
		breaks: "A peer cannot write to the memory of another session.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestViolationsAreTerminated$"}},
	},
	{
		name:   "iwarp-write-without-right",
		file:   "pkg/rdma/iwarp/receive.go",
		old:    "uint32(r.left), memory.RemoteWrite)",
		new:    "uint32(r.left), memory.LocalWrite)",
		breaks: "A peer writes only to memory that was registered for that.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestViolationsAreTerminated$"}},
	},
	{
		name: "iwarp-write-wraps",
		file: "pkg/rdma/internal/registration/memory.go",
		old: `	case offset+uint64(length) < offset:
		return nil, WrapsAround
`,
		new:    "",
		breaks: "A Write that wraps around reaches no memory.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestViolationsAreTerminated$"}},
	},
	{
		name: "iwarp-read-of-another-domain",
		file: "pkg/rdma/iwarp/receive.go",
		old:  "	return region, readRefusals[refusal]",
		new: `	if refusal == registration.OtherDomain {
		return c.Domain.Table().Lookup(request.sourceSTag), nil
	}
	return region, readRefusals[refusal]`,
		breaks: "A peer cannot read the memory of another session.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestViolationsAreTerminated$"}},
	},
	{
		name:   "iwarp-read-without-right",
		file:   "pkg/rdma/iwarp/receive.go",
		old:    "request.length, memory.RemoteRead)",
		new:    "request.length, 0)",
		breaks: "A peer reads only memory that was registered for that.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestViolationsAreTerminated$"}},
	},
	{
		name: "iwarp-read-is-not-checked-again",
		file: "pkg/rdma/iwarp/receive.go",
		old: `	region, v := c.checkRead(request)
	if v != nil {
		return v
	}
	r.readSequence++`,
		new: `	region := c.queue.device.Table.Lookup(request.sourceSTag)
	r.readSequence++`,
		breaks: "Memory that is deregistered while a Read Request arrives is not read.",
		tests: []test{
			{"./pkg/rdma/iwarp", "^TestAReadOfMemoryThatIsDeregisteredMeanwhileFails$"},
		},
	},
	{
		name: "iwarp-read-depth",
		file: "pkg/rdma/iwarp/receive.go",
		old: `	case c.responses.Room() == 0:
		return violationReadCount
`,
		new:    "",
		breaks: "A peer has no more Reads outstanding than agreed.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestViolationsAreTerminated$"}},
	},
	{
		name: "iwarp-response-too-short",
		file: "pkg/rdma/iwarp/receive.go",
		old: `if h.offset != r.tagged.offset || received > uint64(w.Length) ||
		h.last != (received == uint64(w.Length)) {`,
		new:    "if h.offset != r.tagged.offset || received > uint64(w.Length) {",
		breaks: "A Read completes when all of its data has arrived.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestViolationsAreTerminated$"}},
	},
	{
		name:   "iwarp-response-too-long",
		file:   "pkg/rdma/iwarp/receive.go",
		old:    "received := r.tagged.received + uint64(r.left)",
		new:    "received := min(r.tagged.received+uint64(r.left), uint64(w.Length))",
		breaks: "The response to a Read writes no further than the Read.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestViolationsAreTerminated$"}},
	},
	{
		name:   "iwarp-send-too-long-in-its-second-segment",
		file:   "pkg/rdma/iwarp/receive.go",
		old:    "if uint64(h.offset)+uint64(r.left) > uint64(w.Length) {",
		new:    "if uint64(r.left) > uint64(w.Length) {",
		breaks: "A message writes no further than its receive.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestViolationsAreTerminated$"}},
	},
	{
		name:   "iwarp-send-out-of-order",
		file:   "pkg/rdma/iwarp/receive.go",
		old:    "case h.sequence != r.sendSequence:",
		new:    "case h.sequence < r.sendSequence:",
		breaks: "Messages arrive in the order in which they were sent.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestViolationsAreTerminated$"}},
	},
	{
		name: "iwarp-write-with-a-gap",
		file: "pkg/rdma/iwarp/receive.go",
		old: `		if h.offset != r.tagged.offset {
			return violationWriteBounds
		}
`,
		new:    "",
		breaks: "The segments of a Write follow each other.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestViolationsAreTerminated$"}},
	},
	{
		name: "iwarp-writes-to-deregistered-memory",
		file: "pkg/rdma/iwarp/receive.go",
		old: `	if !region.Acquire() {
		c.fail(r.revokedViolation())
		return 0, 0, 0
	}
`,
		new: `	if region.Acquire(); false {
		c.fail(r.revokedViolation())
		return 0, 0, 0
	}
`,
		breaks: "Nothing is written to memory once Deregister has returned.",
		tests: []test{
			{"./pkg/rdma/iwarp", "^TestAWriteToMemoryThatIsDeregisteredMeanwhileFails$"},
		},
	},
	{
		name:   "iwarp-copies-to-deregistered-memory",
		file:   "pkg/rdma/iwarp/receive.go",
		old:    "if !c.queue.regions.Acquire(r.region) {",
		new:    "if c.queue.regions.Acquire(r.region); false {",
		breaks: "Nothing is copied to memory once Deregister has returned.",
		tests: []test{
			{"./pkg/rdma/iwarp", "^TestAWriteToMemoryThatIsDeregisteredMeanwhileFails$"},
		},
	},
	{
		name:   "iwarp-sends-before-the-peer",
		file:   "pkg/rdma/iwarp/transmit.go",
		old:    "if t.awaitingPeer || t.blocked {",
		new:    "if t.blocked {",
		breaks: "The connecting side speaks first.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestResponderWaitsForFirstFrame$"}},
	},
	{
		name: "iwarp-read-completes-when-it-is-sent",
		file: "pkg/rdma/iwarp/transmit.go",
		old: `		if w.Opcode == rdma.OpRead && !w.Done {
			return
		}
`,
		new:    "",
		breaks: "A Read completes when its data has arrived.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestRandomRequestsMatchModel$"}},
	},
	{
		name:   "iwarp-responses-come-between-chained-requests",
		file:   "pkg/rdma/iwarp/transmit.go",
		old:    "t.responseTurn, t.fromQueue = !w.Chained, true",
		new:    "t.responseTurn, t.fromQueue = true, true",
		breaks: "Nothing is sent between requests that were posted together.",
		tests: []test{
			{"./pkg/rdma/iwarp", "^TestNothingIsSentBetweenRequestsThatWerePostedTogether$"},
		},
	},
	{
		name: "iwarp-end-inside-a-message-is-orderly",
		file: "pkg/rdma/iwarp/receive.go",
		old: `return r.stage == stageHeader && r.have == 0 && r.partial.have == 0 &&
		!r.tagged.open && !r.untagged.open`,
		new:    "return r.stage == stageHeader && r.have == 0 && r.partial.have == 0",
		breaks: "A stream that ends within a message is an error.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestStreamEndInsideMessageIsError$"}},
	},
	{
		name:   "shm-bound-of-a-response-is-the-whole-read",
		file:   "pkg/rdma/shm/receive.go",
		old:    "r.length == 0 || r.length > w.Length-*received ||",
		new:    "r.length == 0 || r.length > w.Length ||",
		breaks: "The response to a Read writes no further than the Read.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedResponsesEndTheConnection$"}},
	},
	{
		name:   "shm-response-ends-early",
		file:   "pkg/rdma/shm/receive.go",
		old:    "\t\t\tr.last != (*received+r.length == w.Length) {",
		new:    "\t\t\t!r.last && *received+r.length == w.Length {",
		breaks: "A Read completes when all of its data has arrived.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedResponsesEndTheConnection$"}},
	},
	{
		name:   "shm-response-at-another-offset",
		file:   "pkg/rdma/shm/receive.go",
		old:    "if r.address != uint64(*received) || r.length == 0",
		new:    "if r.length == 0",
		breaks: "The pieces of a response follow each other.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedResponsesEndTheConnection$"}},
	},
	{
		name:   "shm-response-without-copying",
		file:   "pkg/rdma/shm/receive.go",
		old:    "if r.lent != w.Extra.lent || r.length != w.Length || *received != 0 || !r.last {",
		new:    "if r.length != w.Length || *received != 0 || !r.last {",
		breaks: "A Read that was not lent memory is not completed without its data.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedResponsesEndTheConnection$"}},
	},
	{
		name:   "shm-message-longer-than-what-is-left",
		file:   "pkg/rdma/shm/receive.go",
		old:    "case uint64(r.length) > uint64(w.Length-c.received):",
		new:    "case uint64(r.length) > uint64(w.Length):",
		breaks: "A message writes no further than its receive.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedMessagesEndTheConnection$"}},
	},
	{
		name:   "shm-message-with-a-gap",
		file:   "pkg/rdma/shm/receive.go",
		old:    "case r.lent != 0 || r.address != uint64(c.received) ||",
		new:    "case r.lent != 0 ||",
		breaks: "The pieces of a message follow each other.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedMessagesEndTheConnection$"}},
	},
	{
		name:   "shm-write-without-right",
		file:   "pkg/rdma/shm/receive.go",
		old:    "r.length, rights)",
		new:    "r.length, memory.LocalWrite)",
		breaks: "A peer reaches only memory that was registered for that.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedRecordsEndTheConnection$"}},
	},
	{
		name: "shm-reaches-another-domain",
		file: "pkg/rdma/internal/registration/memory.go",
		old: `	case r.domain != d:
		return nil, OtherDomain
`,
		new:    "",
		breaks: "A peer cannot reach the memory of another session.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedRecordsEndTheConnection$"}},
	},
	{
		name:   "shm-reaches-behind-the-memory",
		file:   "pkg/rdma/internal/registration/memory.go",
		old:    "case offset+uint64(length) > uint64(len(r.bytes)):",
		new:    "case offset+1 > uint64(len(r.bytes)):",
		breaks: "A peer reaches no further than the memory that it names.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedRecordsEndTheConnection$"}},
	},
	{
		name:   "shm-borrows-behind-the-memory",
		file:   "pkg/rdma/shm/receive.go",
		old:    "if b.memory.CheckRange(offset, uint64(length)) != nil {",
		new:    "if b.memory.CheckRange(offset, 0) != nil {",
		breaks: "A record names no more than the memory that was lent.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedRecordsEndTheConnection$"}},
	},
	{
		name:   "shm-reads-into-memory-lent-for-reading",
		file:   "pkg/rdma/shm/receive.go",
		old:    "if sink == nil || !sink.offer.writable {",
		new:    "if sink == nil {",
		breaks: "Memory that was lent for reading is not written to.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedRecordsEndTheConnection$"}},
	},
	{
		name:   "shm-read-depth",
		file:   "pkg/rdma/shm/receive.go",
		old:    "case c.responses.Room() == 0:",
		new:    "case false:",
		breaks: "A peer has no more Reads outstanding than agreed.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedRecordsEndTheConnection$"}},
	},
	{
		name:   "shm-record-across-the-tail",
		file:   "pkg/rdma/shm/receive.go",
		old:    "if span > tail-c.position || at+span > ringBytes {",
		new:    "if at+span > ringBytes {",
		breaks: "A record ends where the peer has stopped to write.",
		tests:  []test{{"./pkg/rdma/shm", "^TestAForgedTailCarriesNothingOut$"}},
	},
	{
		name:   "shm-tail-beyond-the-ring",
		file:   "pkg/rdma/shm/receive.go",
		old:    "if tail-c.position > ringBytes {",
		new:    "if tail < c.position {",
		breaks: "A peer cannot have written more than the ring holds.",
		tests:  []test{{"./pkg/rdma/shm", "^TestAForgedTailCarriesNothingOut$"}},
	},
	{
		name:   "shm-looks-at-no-connection-that-waits-for-room",
		file:   "pkg/rdma/shm/watch.go",
		old:    " || c.hasUnsent()\n",
		new:    "\n",
		breaks: "A connection that waits for room continues when the peer makes it.",
		tests:  []test{{"./pkg/rdma/shm", "^TestRoomIsNoticedWheneverThePeerMakesIt$"}},
	},
	{
		name:   "shm-looks-at-no-connection-that-waits-for-its-peer",
		file:   "pkg/rdma/shm/watch.go",
		old:    " || c.Sends.Head != c.Sends.Next",
		new:    "",
		breaks: "A Write from lent memory completes when the peer has carried it out.",
		tests: []test{
			{"./pkg/rdma/shm", "^TestALentWriteCompletesWhenThePeerHasCarriedItOut$"},
		},
	},
	{
		name:   "shm-looks-at-no-connection-whose-socket-has-ended",
		file:   "pkg/rdma/shm/watch.go",
		old:    "at.waits = c.hungUp || ",
		new:    "at.waits = ",
		breaks: "The end of a peer's socket ends the connection.",
		tests:  []test{{"./pkg/rdma/shm", "^TestDescriptorsOnTheBellEndTheConnection$"}},
	},
	{
		name:   "sessions-of-a-queue-do-not-count-as-others",
		file:   "pkg/rdma/internal/softrdma/fairness.go",
		old:    "	contended := f.last != s && f.last != nil\n",
		new:    "	contended := false\n",
		breaks: "Sessions on the same worker have bounded turns.",
		tests: []test{
			{"./pkg/rdma/internal/softrdma", "^TestConnectionsOfASessionShareItsTurn$"},
		},
	},
	{
		name:   "shm-consumed-goes-back",
		file:   "pkg/rdma/shm/transmit.go",
		old:    "if consumed < c.peerConsumed || consumed > c.tail {",
		new:    "if consumed > c.tail {",
		breaks: "A peer cannot take back what it has consumed.",
		tests:  []test{{"./pkg/rdma/shm", "^TestConsumptionCannotBeTakenBack$"}},
	},
	{
		name: "shm-overwrites-the-ring",
		file: "pkg/rdma/shm/transmit.go",
		old: `	return c.refreshConsumed() && c.tail-c.peerConsumed+bytes <= ringBytes
`,
		new: `	return c.refreshConsumed() && c.tail-c.peerConsumed+bytes <= ringBytes+recordBytes
`,
		breaks: "What the peer has not consumed is not overwritten.",
		tests:  []test{{"./pkg/rdma/shm", "^TestAFullRingWaitsForThePeer$"}},
	},
	{
		name: "shm-lent-write-completes-early",
		file: "pkg/rdma/shm/transmit.go",
		old: `		case w.Extra.awaitsPeer && c.peerConsumed < w.Extra.end:
			if !c.refreshConsumed() || c.peerConsumed < w.Extra.end {
				return
			}
`,
		new:    "",
		breaks: "A Write from lent memory completes when the peer has carried it out.",
		tests: []test{
			{"./pkg/rdma/shm", "^TestALentWriteCompletesWhenThePeerHasCarriedItOut$"},
		},
	},
	{
		name: "shm-announces-before-it-copies",
		file: "pkg/rdma/shm/receive.go",
		old: `		c.handle(&r, c.peer.ring[at+recordBytes:at+recordBytes+r.inlineWithin(span)])
		if c.Phase != softrdma.PhaseOpen {
			return
		}
		c.position += span
`,
		new: `		c.position += span
		c.publish()
		c.handle(&r, c.peer.ring[at+recordBytes:at+recordBytes+r.inlineWithin(span)])
		if c.Phase != softrdma.PhaseOpen {
			return
		}
`,
		breaks: "What is in the ring counts as consumed once it has been copied.",
		tests:  []test{{"./pkg/rdma/shm", "^TestForgedRecordsEndTheConnection$"}},
	},
	{
		name:   "shm-imports-memory-that-can-be-changed",
		file:   "pkg/rdma/shm/outbox_linux.go",
		old:    "if seals&unix.F_SEAL_FUTURE_WRITE == 0 {",
		new:    "if false {",
		breaks: "A peer cannot take away the memory of a ring.",
		tests: []test{
			{"./pkg/rdma/shm", "^TestOutboxesThatThePeerCouldTakeAwayAreRejected$"},
		},
	},
	{
		name:   "shm-lends-for-reading-what-can-be-written",
		file:   "pkg/rdma/shm/outbox_linux.go",
		old:    "return err == nil && (writable || seals&unix.F_SEAL_FUTURE_WRITE != 0)",
		new:    "return err == nil && (writable || seals >= 0)",
		breaks: "A peer cannot write to memory that it is lent for reading.",
		tests: []test{
			{"./pkg/rdma/shm", "^TestLentMemoryCannotBeWrittenUnlessItIsLentForWriting$"},
		},
	},
	{
		name: "shm-dead-peer-ended-orderly",
		file: "pkg/rdma/shm/connection.go",
		old: `c.end(endingAborted, status.Errorf(status.ConnectionReset,
			"connection to %v: the peer's process ended it without a reason, or died", remote),
			outcome)`,
		new:    "c.end(endingOrderly, nil, outcome)",
		breaks: "The death of a peer is no orderly end.",
		tests:  []test{{"./pkg/rdma/shm", "^TestAKilledPeerEndsTheConnection$"}},
	},
	{
		name: "registration-does-not-wait-for-uses",
		file: "pkg/rdma/internal/registration/memory.go",
		old: `	if u.count.Add(revoked) != revoked {
		<-u.unused
	}
`,
		new: `	u.count.Add(revoked)
`,
		breaks: "Deregister waits for those who are using the memory.",
		tests: []test{
			{"./pkg/rdma/internal/registration", "^TestDeregisterWaitsForUses$"},
		},
	},
	{
		name: "registration-acquires-what-is-revoked",
		file: "pkg/rdma/internal/registration/memory.go",
		old: `	if u.count.Add(1) > 0 {
`,
		new: `	if u.count.Add(1) != 0 {
`,
		breaks: "Nobody uses memory after it has been deregistered.",
		tests: []test{
			{"./pkg/rdma/internal/registration", "^TestDeregisterWaitsForUses$"},
		},
	},
	{
		name:   "registration-key-of-a-slot",
		file:   "pkg/rdma/internal/registration/memory.go",
		old:    "r != nil && r.key == key {",
		new:    "r != nil {",
		breaks: "Memory is reached by its whole key.",
		tests: []test{
			{"./pkg/rdma/internal/registration", "^TestRegionsAreFoundAfterTheTableHasGrown$"},
		},
	},
	{
		name: "registration-loses-regions-when-it-grows",
		file: "pkg/rdma/internal/registration/memory.go",
		old: `			slots.slot(r.key).Store(r)
		}
	}
	t.slots.Store(slots)`,
		new: `			slots.entries[i].Store(r)
		}
	}
	t.slots.Store(slots)`,
		breaks: "Memory is found by its key however much more is registered.",
		tests: []test{
			{"./pkg/rdma/internal/registration", "^TestRegionsAreFoundAfterTheTableHasGrown$"},
		},
	},
	{
		name: "registration-posts-memory-of-another-domain",
		file: "pkg/rdma/internal/registration/memory.go",
		old: `	case r == nil:
		return nil, UnknownKey
	case r.domain != d:
`,
		new: `	case r == nil:
		return nil, UnknownKey
	case false:
`,
		breaks: "A connection uses the memory of its own domain only.",
		tests: []test{
			{"./pkg/rdma/internal/registration", "^TestOnlyWhatWasGrantedIsFound$"},
		},
	},
	{
		name:   "registration-posts-a-read-into-read-only-memory",
		file:   "pkg/rdma/internal/registration/memory.go",
		old:    "case !r.access.Has(rights):",
		new:    "case false:",
		breaks: "Nothing is received into memory that was registered without LocalWrite.",
		tests: []test{
			{"./pkg/rdma/internal/registration", "^TestOnlyWhatWasGrantedIsFound$"},
		},
	},
	{
		name:   "registration-range-wraps",
		file:   "pkg/rdma/internal/registration/memory.go",
		old:    "case offset+uint64(length) < offset:",
		new:    "case false:",
		breaks: "A range that wraps around is outside of all memory.",
		tests: []test{
			{"./pkg/rdma/internal/registration", "^TestOnlyWhatWasGrantedIsFound$"},
		},
	},
	{
		name: "registration-closes-a-domain-in-use",
		file: "pkg/rdma/internal/registration/memory.go",
		old: `	if !d.uses.RevokeUnused() {
`,
		new: `	if d.uses.RevokeUnused(); false {
`,
		breaks: "A domain with memory or connections cannot be closed.",
		tests: []test{
			{"./pkg/rdma/internal/registration", "^TestADomainInUseCannotBeClosed$"},
		},
	},
	{
		name: "workqueue-silent-requests-free-too-little",
		file: "pkg/rdma/internal/workqueue/queue.go",
		old: `		*e.freed += e.slots
`,
		new: `		*e.freed += min(e.slots, 1)
`,
		breaks: "A completion returns the credit of the silent requests before it.",
		tests: []test{
			{"./pkg/rdma/internal/workqueue", "^TestRoomIsReturnedWithTheCompletions$"},
		},
	},
	{
		name:   "workqueue-accepts-one-too-many",
		file:   "pkg/rdma/internal/workqueue/queue.go",
		old:    "func (q *Queue[T]) Room() uint32 { return q.limit - (q.Tail - q.Freed) }",
		new:    "func (q *Queue[T]) Room() uint32 { return q.limit + 1 - (q.Tail - q.Freed) }",
		breaks: "A queue accepts no more requests than its limit.",
		tests: []test{
			{"./pkg/rdma/internal/workqueue", "^TestRoomIsReturnedWithTheCompletions$"},
		},
	},
	{
		name:   "workqueue-remote-address-wraps",
		file:   "pkg/rdma/internal/workqueue/queue.go",
		old:    " || r.RemoteAddress+uint64(r.Local.Length) < r.RemoteAddress {",
		new:    " {",
		breaks: "A request whose remote range wraps around is rejected.",
		tests:  []test{{"./pkg/rdma/internal/workqueue", "^TestSendRequestsAreChecked$"}},
	},
	{
		name:   "connections-queue-closes-with-connections",
		file:   "pkg/rdma/internal/softrdma/connection_set.go",
		old:    "if n := s.attached.Load(); n > 0 {",
		new:    "if n := s.attached.Load(); n > 1 {",
		breaks: "A queue with a connection cannot be closed.",
		tests: []test{
			{"./pkg/rdma/internal/softrdma", "^TestASetWithConnectionsCannotBeClosed$"},
		},
	},
	{
		name: "connections-sleep-on-an-abort",
		file: "pkg/rdma/internal/softrdma/connection_set.go",
		old: `	s.notified.Store(true)
	s.Wake()
`,
		new: `	s.notified.Store(true)
`,
		breaks: "An abort wakes a thread that sleeps.",
		tests: []test{
			{"./pkg/rdma/internal/softrdma", "^TestANotificationWakesUntilTheSetIsClosed$"},
		},
	},
	{
		name:   "auto-sleeps-on-shared-memory",
		file:   "pkg/rdma/auto/queue_linux.go",
		old:    "waitForAll(tcp.Descriptor(), local.Descriptor())",
		new:    "waitForAll(tcp.Descriptor())",
		breaks: "What arrives over either transport wakes a thread that sleeps.",
		tests:  []test{{"./pkg/rdma/auto", "^TestProviderConformance$"}},
	},
	{
		name: "auto-stays-armed",
		file: "pkg/rdma/auto/queue_linux.go",
		old: `		q.local.Disarm()
		return false
`,
		new: `		return false
`,
		breaks: "A queue arms both transports or none.",
		tests:  []test{{"./pkg/rdma/auto", "^TestAQueueArmsBothTransportsOrNone$"}},
	},
	{
		name:   "auto-does-not-fall-back",
		file:   "pkg/rdma/auto/connect.go",
		old:    "if err == nil || isFinal(ctx, err) {",
		new:    "if true {",
		breaks: "A peer without shared memory is reached over TCP.",
		tests:  []test{{"./pkg/rdma/auto", "^TestTheTransportIsWhatBothSidesHave$"}},
	},
	{
		name:   "auto-gives-up-on-a-full-socket",
		file:   "pkg/rdma/auto/connect.go",
		old:    "return ctx.Err() != nil || errors.As",
		new:    "return status.CodeOf(err) == status.OperatingSystem || errors.As",
		breaks: "Strangers who fill the socket of shared memory leave TCP.",
		tests:  []test{{"./pkg/rdma/auto", "^TestAFullSocketLeavesTCP$"}},
	},
	{
		name:   "auto-leaves-no-time-for-tcp",
		file:   "pkg/rdma/auto/connect.go",
		old:    "time.Until(deadline)/2",
		new:    "time.Until(deadline)",
		breaks: "A socket that never answers leaves time for TCP.",
		tests:  []test{{"./pkg/rdma/auto", "^TestTCPIsTriedAfterEveryErrorOfSharedMemory$"}},
	},
	{
		name:   "auto-falls-back-after-a-rejection",
		file:   "pkg/rdma/auto/connect.go",
		old:    "len(rejected.Reason) > 0",
		new:    "len(rejected.Reason) < 0",
		breaks: "The peer's reason for a rejection reaches the caller.",
		tests:  []test{{"./pkg/rdma/auto", "^TestProviderConformance$"}},
	},
}
