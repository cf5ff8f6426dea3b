// SPDX-License-Identifier: Apache-2.0

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
		name:   "alerts-report-daemons-that-are-stopped",
		file:   "deploy/prometheus/alerts.yaml",
		old:    `zc_relay_io_failures_total{code!~"INVALID_VALUE|TOO_BIG|SHUTDOWN"}`,
		new:    `zc_relay_io_failures_total{code!~"INVALID_VALUE|TOO_BIG"}`,
		breaks: "Stopping a relay raises no alert of IO that fails.",
		tests:  []test{{"./cmd/internal/service", "^TestRulesFireAsTheirScenariosSay$"}},
	},
	{
		name:   "metrics-lose-rare-causes",
		file:   "cmd/internal/metrics/failures.go",
		old:    "			k.cause = status.CauseUnknown.String()\n",
		new:    "			continue\n",
		breaks: "A failure for a rare cause is counted, too.",
		tests:  []test{{"./cmd/internal/metrics", "^TestFailuresOfVolumesAreCountedByCause$"}},
	},
	{
		name:   "metrics-read-the-counters-of-each-session",
		file:   "cmd/internal/metrics/relay.go",
		old:    "		session := &c.OpenSessions[i]\n",
		new:    "		session := &c.OpenSessions[i]\n		_ = session.Counters.Total()\n",
		breaks: "A scrape costs nothing for a session.",
		tests:  []test{{"./cmd/internal/metrics", "^TestAScrapeAllocatesNothingForASession$"}},
	},
	{
		name:   "counters-forget-closed-lanes",
		file:   "pkg/datapath/counters.go",
		old:    "	s.closed[queue].add(c)\n",
		new:    "",
		breaks: "What a lane has counted stays when it is closed: no count ever decreases.",
		tests: []test{{"./pkg/datapath",
			"^(TestASetKeepsWhatClosedLanesHaveCounted|TestReadersNeverSeeACountDecrease)$"}},
	},
	{
		name:   "counters-keep-closed-lanes",
		file:   "pkg/datapath/lane.go",
		old:    "	if l.detached = err == nil; l.detached {\n		l.retireCounters()\n	}\n",
		new:    "	l.detached = err == nil\n",
		breaks: "Sessions that have ended take up no memory for their counters.",
		tests:  []test{{"./pkg/datapath", "^TestABadRequestIsRejectedAndTheLaneKeepsRunning$"}},
	},
	{
		name:   "roster-counts-one-client-too-many",
		file:   "internal/roster/roster.go",
		old:    "	if count < r.limit {\n",
		new:    "	if count <= r.limit {\n",
		breaks: "The number of clients with metrics of their own is bounded.",
		tests:  []test{{"./internal/roster", "^TestClientsBeyondTheLimitCountTogether$"}},
	},
	{
		name:   "roster-lets-names-of-the-gone-keep-others-out",
		file:   "internal/roster/roster.go",
		old:    " && r.isIdle(&e.value) {\n",
		new:    " && r.isIdle(&e.value) && count == 0 {\n",
		breaks: "A client that changes its name keeps nobody from being counted.",
		tests:  []test{{"./internal/roster", "^TestANewClientTakesThePlaceOfOneThatHasGone$"}},
	},
	{
		name:   "audit-depends-on-the-log-level",
		file:   "cmd/internal/logging/always.go",
		old:    "	return checked.AddCore(entry, a)\n",
		new:    "	return a.Core.Check(entry, checked)\n",
		breaks: "Who changes the log level first cannot hide what follows.",
		tests: []test{{"./cmd/internal/logging",
			"^TestALoggerThatAlwaysLogsIgnoresLevelAndSampling$"}},
	},
	{
		name:   "audit-says-nothing-of-signals",
		file:   "cmd/internal/service/reload.go",
		old:    "		case <-r.hangups:\n			isSignalled = true\n		case <-r.requests:\n",
		new:    "		case <-r.hangups:\n		case <-r.requests:\n",
		breaks: "The log says that a signal asked for a reload.",
		tests:  []test{{"./cmd/internal/service", "^TestTheAuditLogSaysThatASignalAskedForAReload$"}},
	},
}
