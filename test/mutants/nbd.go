// SPDX-License-Identifier: Apache-2.0

package main

// nbdMutants break the NBD server: negotiation, bounds, and replies.
var nbdMutants = []mutant{
	{
		name: "nbd-serves-without-tls",
		file: "pkg/nbd/negotiation.go",
		old: `!n.encrypted && kind != optionStartTLS &&
		kind != optionAbort {`,
		new: `!n.encrypted && kind != optionStartTLS &&
		kind != optionAbort && kind != optionExportName {`,
		breaks: "A server with TLS serves nobody without it.",
		tests:  []test{{"./pkg/nbd", "^TestMutualTLS$"}},
	},
	{
		name:   "nbd-context-of-another-export",
		file:   "pkg/nbd/negotiation.go",
		old:    "n.context = n.context && n.contextExport == name",
		new:    `n.context = n.context && n.contextExport != ""`,
		breaks: "A metadata context holds for the export for which it was selected.",
		tests:  []test{{"./pkg/nbd", "^TestAContextHoldsForItsExport$"}},
	},
	{
		name:   "nbd-options-without-end",
		file:   "pkg/nbd/negotiation.go",
		old:    "for range maxOptions {",
		new:    "for {",
		breaks: "A client cannot negotiate for ever.",
		tests:  []test{{"./pkg/nbd", "^TestViolationsEndTheNegotiation$"}},
	},
	{
		name:   "nbd-discards-without-bound",
		file:   "pkg/nbd/negotiation.go",
		old:    "if length > maxDiscard || kind == optionExportName {",
		new:    "if kind == optionExportName {",
		breaks: "The server does not read options of any length.",
		tests:  []test{{"./pkg/nbd", "^TestViolationsEndTheNegotiation$"}},
	},
	{
		name: "nbd-string-longer-than-the-option",
		file: "pkg/nbd/negotiation.go",
		old:  "if uint64(length) > uint64(len(data)) || !isString(data[:length]) {",
		new: `length = min(length, uint32(len(data)))
	if !isString(data[:length]) {`,
		breaks: "A string ends within its option.",
		tests:  []test{{"./pkg/nbd", "^TestOptionsAreAnsweredAsTheSpecificationSays$"}},
	},
	{
		name:   "nbd-admits-beyond-the-limit",
		file:   "pkg/nbd/server.go",
		old:    "if e.open.Add(1) > int64(e.limit) {",
		new:    "if e.open.Add(1) > int64(e.limit)+1 {",
		breaks: "An export has no more connections than its limit.",
		tests:  []test{{"./pkg/nbd", "^TestConnectionsBeyondTheLimitAreRefused$"}},
	},
	{
		name:   "nbd-begins-beside-a-connection-that-leaves",
		file:   "pkg/nbd/server.go",
		old:    "\ts.awaitLeaving(e)\n",
		new:    "",
		breaks: "A new connection waits for one that is leaving.",
		tests:  []test{{"./pkg/nbd", "^TestAConnectionThatIsLeavingIsWaitedForAndThenEnded$"}},
	},
	{
		name:   "nbd-request-may-end-behind-the-export",
		file:   "pkg/nbd/connection.go",
		old:    "case h.length > c.info.Size || h.offset > c.info.Size-h.length:",
		new:    "case h.offset > c.info.Size:",
		breaks: "A request ends within the export.",
		tests:  []test{{"./pkg/nbd", "^TestRequestsAreRejectedAsTheSpecificationSays$"}},
	},
	{
		name:   "nbd-read-only-trims",
		file:   "pkg/nbd/connection.go",
		old:    "changes := h.kind == blockio.Write || h.kind == blockio.Trim || h.kind == blockio.WriteZeroes",
		new:    "changes := h.kind == blockio.Write || h.kind == blockio.WriteZeroes",
		breaks: "An export that is read-only is not changed.",
		tests:  []test{{"./pkg/nbd", "^TestRequestsAreRejectedAsTheSpecificationSays$"}},
	},
	{
		name:   "nbd-unknown-flags",
		file:   "pkg/nbd/connection.go",
		old:    "if h.kind >= blockio.CommandCount || h.flags&^allowedFlags[h.kind] != 0 {",
		new:    "if h.kind >= blockio.CommandCount {",
		breaks: "A request with flags that it may not have is rejected.",
		tests:  []test{{"./pkg/nbd", "^TestRequestsAreRejectedAsTheSpecificationSays$"}},
	},
	{
		name:   "nbd-rejects-before-the-data",
		file:   "pkg/nbd/connection.go",
		old:    "if h.kind == blockio.Write && h.length > 0 {",
		new:    "if h.kind == blockio.Write && h.length > maxRejected {",
		breaks: "The data of a rejected write is no request.",
		tests:  []test{{"./pkg/nbd", "^TestRequestsAreRejectedAsTheSpecificationSays$"}},
	},
	{
		name:   "nbd-rejects-writes-of-any-length",
		file:   "pkg/nbd/connection.go",
		old:    "if h.kind == blockio.Write && h.length > maxRejected {",
		new:    "if false {",
		breaks: "The server does not read rejected writes of any length.",
		tests:  []test{{"./pkg/nbd", "^TestWrongRequestsEndTheConnectionAndNothingElse$"}},
	},
	{
		name:   "nbd-reply-ends-with-the-first-part",
		file:   "pkg/nbd/connection.go",
		old:    "complete := r.pending == 0 && r.claimed == r.length && c.current != r",
		new:    "complete := r.claimed == r.length && c.current != r",
		breaks: "A request completes with the last of its operations.",
		tests: []test{
			{"./pkg/nbd", "^(TestAWriteFailsAsAWhole|" +
				"TestRequestsDoWhatTheyDoToAnArray)$"},
		},
	},
	{
		name: "nbd-forgets-a-failed-part",
		file: "pkg/nbd/connection.go",
		old: `if op.Error != blockio.Success && r.failure == blockio.Success {
		r.failure = op.Error`,
		new: `if r.claimed == r.length {
		r.failure = op.Error`,
		breaks: "A write fails if a part of it does.",
		tests:  []test{{"./pkg/nbd", "^TestAWriteFailsAsAWhole$"}},
	},
	{
		name:   "nbd-flags-do-not-reach-the-disk",
		file:   "pkg/nbd/connection.go",
		old:    "c.session.Claim(r.kind, r.flags&sessionFlags, r.offset+r.claimed,",
		new:    "c.session.Claim(r.kind, r.flags&sessionFlags&^blockio.FUA, r.offset+r.claimed,",
		breaks: "FUA reaches the disk.",
		tests:  []test{{"./pkg/nbd", "^TestFlagsReachTheDisk$"}},
	},
	{
		name: "nbd-second-part-has-the-first-offset",
		file: "pkg/nbd/connection.go",
		old: `r.offset+r.claimed,
`,
		new: `r.offset,
`,
		breaks: "The parts of a request follow each other.",
		tests:  []test{{"./pkg/nbd", "^TestRequestsDoWhatTheyDoToAnArray$"}},
	},
	{
		name: "nbd-disconnect-drops-what-is-in-progress",
		file: "pkg/nbd/connection.go",
		old: `		c.inputStart = c.inputEnd // the client may not send anything else
		c.drain()
`,
		new: `		c.close("")
`,
		breaks: "A disconnect answers the requests before it.",
		tests:  []test{{"./pkg/nbd", "^TestDisconnectAnswersWhatWasSentBefore$"}},
	},
	{
		name:   "nbd-failed-read-is-sent",
		file:   "pkg/nbd/connection.go",
		old:    "case r.kind == blockio.Read && op.Error == blockio.Success:",
		new:    "case r.kind == Read:",
		breaks: "The data of a read that failed is not sent.",
		tests:  []test{{"./pkg/nbd", "^TestAReadThatFailsIsReportedOrEndsTheConnection$"}},
	},
	{
		name:   "nbd-fragments-what-must-be-one-chunk",
		file:   "pkg/nbd/connection.go",
		old:    "(!c.structured || h.flags&dontFragment != 0)",
		new:    "(!c.structured)",
		breaks: "A read that must not be fragmented is one chunk.",
		tests:  []test{{"./pkg/nbd", "^TestAReadThatMustNotBeFragmentedIsOneChunk$"}},
	},
	{
		name: "nbd-releases-data-before-it-is-sent",
		file: "pkg/nbd/reply.go",
		old: `		if c.sent < length {
			return
`,
		new: `		if c.sent < length/2 {
			return
`,
		breaks: "The data of a reply stays until it has been sent.",
		tests: []test{
			{"./pkg/nbd", "^(TestASlowReaderHurtsNobodyElse|" +
				"TestRequestsDoWhatTheyDoToAnArray)$"},
		},
	},
	{
		name:   "nbd-hole-is-no-zero",
		file:   "pkg/nbd/reply.go",
		old:    "state = stateHole | stateZero",
		new:    "state = stateHole",
		breaks: "A client is told that a hole reads as zeroes.",
		tests:  []test{{"./pkg/nbd", "^TestBlockStatusTellsWhatTheDiskKnows$"}},
	},
	{
		name: "nbd-answers-more-than-one-extent",
		file: "pkg/nbd/reply.go",
		old: `	if r.flags&blockio.RequestOne != 0 {
		extents = extents[:1]
	}
`,
		new:    "",
		breaks: "A client that asks for one extent gets one.",
		tests:  []test{{"./pkg/nbd", "^TestBlockStatusTellsWhatTheDiskKnows$"}},
	},
}
