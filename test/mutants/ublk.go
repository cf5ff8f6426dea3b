// SPDX-License-Identifier: Apache-2.0

package main

// ublkMutants break the server of the kernel's block devices: what reaches the disk, what the
// kernel is told, and who serves a device.
var ublkMutants = []mutant{
	{
		name:   "ublk-request-may-end-behind-the-device",
		file:   "pkg/ublk/queue.go",
		old:    "case d.start > sectors || uint64(d.sectors) > sectors-d.start, d.sectors == 0,",
		new:    "case d.start > sectors, d.sectors == 0,",
		breaks: "A request ends within the device.",
		tests: []test{
			{"./pkg/ublk", "^TestRequestsThatTheDeviceDoesNotPromiseNeverReachTheDisk$"},
		},
	},
	{
		name:   "ublk-read-only-device-is-changed",
		file:   "pkg/ublk/queue.go",
		old:    "case changes && q.config.isReadOnly:",
		new:    "case changes && q.failed:",
		breaks: "A device that is read-only is not changed.",
		tests: []test{
			{"./pkg/ublk", "^TestRequestsThatTheDeviceDoesNotPromiseNeverReachTheDisk$"},
		},
	},
	{
		name:   "ublk-rejects-a-write-before-its-data",
		file:   "pkg/ublk/queue.go",
		old:    "	if !hasData {\n		q.answer(tag, result)",
		new:    "	if hasData || !hasData {\n		q.answer(tag, result)",
		breaks: "The kernel gets the answer to a write after it has copied the data.",
		tests: []test{
			{"./pkg/ublk", "^TestRequestsThatTheDeviceDoesNotPromiseNeverReachTheDisk$"},
		},
	},
	{
		name:   "ublk-partial-copy-is-a-write",
		file:   "pkg/ublk/queue.go",
		old:    "case q.ring.descriptor(tag).sectors != uint32(r.length/sectorSize):",
		new:    "case false:",
		breaks: "A write whose data the kernel could not copy does not reach the disk.",
		tests:  []test{{"./pkg/ublk", "^TestACopyThatTheKernelCannotMakeIsNotAWrite$"}},
	},
	{
		name:   "ublk-copy-that-was-not-made",
		file:   "pkg/ublk/queue.go",
		old:    "q.receiving = append(q.receiving, tag) // the kernel could not copy: once more",
		new:    "q.submitLater(tag)",
		breaks: "The kernel is asked again for data that it could not copy.",
		tests:  []test{{"./pkg/ublk", "^TestRequestsDoWhatTheyDoToAnArray$"}},
	},
	{
		name:   "ublk-completion-of-a-request-in-progress",
		file:   "pkg/ublk/queue.go",
		old:    "case r.stage != offered && !r.isTold:",
		new:    "case r.stage == ended:",
		breaks: "A completion for a tag that the kernel does not have ends the device.",
		tests:  []test{{"./pkg/ublk", "^TestWhatTheProtocolDoesNotKnowEndsTheDevice$"}},
	},
	{
		name:   "ublk-tag-behind-the-last",
		file:   "pkg/ublk/queue.go",
		old:    "if c.tag >= uint64(len(q.requests)) {",
		new:    "if c.tag > uint64(len(q.requests)) {",
		breaks: "A completion for a tag that does not exist ends the device.",
		tests:  []test{{"./pkg/ublk", "^TestWhatTheProtocolDoesNotKnowEndsTheDevice$"}},
	},
	{
		name:   "ublk-buffer-is-free-before-the-kernel-has-read-it",
		file:   "pkg/ublk/queue.go",
		old:    "		q.committed = append(q.committed, r.op)\n",
		new:    "		q.session.Release(r.op)\n",
		breaks: "A buffer is free when the kernel has copied from it.",
		tests:  []test{{"./pkg/ublk", "^TestRequestsDoWhatTheyDoToAnArray$"}},
	},
	{
		name:   "ublk-fua-is-lost",
		file:   "pkg/ublk/protocol.go",
		old:    "if d.flags&flagFUA != 0 && command != blockio.Read {",
		new:    "if d.flags&flagFUA != 0 && command == blockio.Trim {",
		breaks: "FUA reaches the disk.",
		tests:  []test{{"./pkg/ublk", "^TestFlagsReachTheDisk$"}},
	},
	{
		name:   "ublk-leaver-answers-what-comes-late",
		file:   "pkg/ublk/queue.go",
		old:    "	if q.draining {\n		r.stage = ended",
		new:    "	if q.draining && q.failed {\n		r.stage = ended",
		breaks: "A server that leaves takes no more requests.",
		tests:  []test{{"./pkg/ublk", "^TestAServerThatLeavesAnswersWhatItHasBegun$"}},
	},
	{
		name:   "ublk-does-not-read-features-back",
		file:   "pkg/ublk/device.go",
		old:    "if missing := wanted &^ d.info.features; missing != 0 {",
		new:    "if missing := wanted &^ d.info.features; missing == 1 {",
		breaks: "A device that lacks a feature is not started.",
		tests:  []test{{"./pkg/ublk", "^TestWhatFailsAtTheStartLeavesNoDevice$"}},
	},
	{
		name:   "ublk-takes-a-device-over-with-a-smaller-disk",
		file:   "pkg/ublk/device.go",
		old:    "case d.size() > info.Size:",
		new:    "case d.size() > 2*info.Size:",
		breaks: "A device is not taken over with a smaller disk.",
		tests:  []test{{"./pkg/ublk", "^TestADeviceIsTakenOverOnlyWithWhatItPromises$"}},
	},
	{
		name:   "ublk-removes-a-device-in-use",
		file:   "pkg/ublk/device.go",
		old:    "	if !force {\n		var err error\n",
		new:    "	if !force && d.recovered {\n		var err error\n",
		breaks: "A device in exclusive use is not removed.",
		tests:  []test{{"./pkg/ublk", "^TestADeviceIsRemovedUnlessItIsInUse$"}},
	},
	{
		name:   "ublk-device-of-another-volume",
		file:   "cmd/initiator/command/ublk_identity_linux.go",
		old:    "return !d.isInherited || d.digest == digestOf(info)",
		new:    "return !d.isInherited || d.digest != 0",
		breaks: "A device is taken over with its own volume only.",
		tests:  []test{{"./cmd/initiator/command", "^TestADeviceKnowsItsVolume$"}},
	},
}
