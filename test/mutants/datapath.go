package main

// datapathMutants break the engine: both lanes, and what they are made of.
var datapathMutants = []mutant{
	{
		name:   "target-admits-one-more-than-fits",
		file:   "pkg/datapath/target_path.go",
		old:    "int(c.send.room()) > l.active+1 }",
		new:    "int(c.send.room()) >= l.active+1 }",
		breaks: "A target keeps room in its send ring for the response to stop.",
		tests: []test{
			{"./pkg/datapath", "^(TestRequestsWaitWhileTheTargetsResponsesAreNotSent|TestStopReturnsAfterEverythingBeforeIt)$"},
		},
	},
	{
		name:   "relay-accepts-a-request-beyond-the-buffer-size",
		file:   "pkg/datapath/relay_path.go",
		old:    "case m.IOSize > l.config.BufferSize:\n",
		new:    "case m.IOSize > l.config.BufferSize+1:\n",
		breaks: "The relay checks the bounds of a request before it forwards it.",
		tests: []test{
			{"./pkg/datapath", "^TestABadRequestIsRejectedAndTheLaneKeepsRunning$"},
		},
	},
}
