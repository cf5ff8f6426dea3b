package main

// observationMutants break what operators see.
var observationMutants = []mutant{
	{
		name:   "metrics-show-failures-once-they-occur",
		file:   "cmd/internal/metrics/failures.go",
		old:    "		case slices.Contains(failureCodes, code):\n",
		new:    "		case n > 0 && slices.Contains(failureCodes, code):\n",
		breaks: "The first burst of failures raises an alert, because they are counted from 0 on.",
		tests:  []test{{"./cmd/internal/metrics", "^TestFailuresAreCountedFromZeroOn$"}},
	},
	{
		name:   "metrics-lose-rare-causes",
		file:   "cmd/internal/metrics/failures.go",
		old:    "			k.cause = status.CauseUnknown.String()\n",
		new:    "			continue\n",
		breaks: "A failure for a rare cause is counted, too.",
		tests:  []test{{"./cmd/internal/metrics", "^TestFailuresOfVolumesAreCountedByCause$"}},
	},
}
