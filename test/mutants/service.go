package main

// serviceMutants break what keeps a daemon running: which of its ends a service manager mends, and
// what the doctor finds before.
var serviceMutants = []mutant{
	{
		name: "service-missing-is-wrong-call",
		file: "cmd/internal/service/service.go",
		old: `	if status.CodeOf(err) == status.InvalidValue {
		return program.Usage(err)`,
		new: `	if status.CodeOf(err) != status.Success {
		return program.Usage(err)`,
		breaks: "A daemon that lacks what may be there at the next start is restarted.",
		tests: []test{{"./cmd/internal/service",
			"^(TestOnlyWhatTheOperatorWroteIsAWrongCall|TestDaemonsTellABadConfigurationFromWhatMayHeal)$"}},
	},
	{
		name:   "service-crash-is-wrong-call",
		file:   "cmd/internal/program/main.go",
		old:    `debug.SetTraceback("crash")`,
		new:    `debug.SetTraceback("all")`,
		breaks: "A program that crashes does not end with the exit code of a wrong call.",
		tests:  []test{{"./cmd/internal/program", "^TestACrashIsNoWrongCall$"}},
	},
	{
		name:   "config-dump-reads-the-units-file-in-spite-of-flags",
		file:   "cmd/internal/config/command.go",
		old:    `file != "" && !from.HasFlags() {`,
		new:    `file != "" {`,
		breaks: "The file of a daemon's unit stands in for a command line only without flags.",
		tests: []test{{"./cmd/internal/config",
			"^TestTheFileOfTheUnitStandsInForACommandLine$"}},
	},
	{
		name: "config-flags-reach-only-the-first-element",
		file: "cmd/internal/config/load.go",
		old: `	for i := range count {
		set(join(join(listKey, strconv.Itoa(i)), rest))`,
		new: `	for i := range min(count, 1) {
		set(join(join(listKey, strconv.Itoa(i)), rest))`,
		breaks: "A flag for the elements of a list sets all that the list's flag describes.",
		tests: []test{{"./cmd/internal/config",
			"^TestVolumesOfFlagsReplaceThoseOfTheFile$"}},
	},
	{
		name:   "doctor-server-of-other-name",
		file:   "cmd/internal/doctor/server.go",
		old:    `	case isTaken(err) && m.daemonRuns():`,
		new:    `	case isTaken(err):`,
		breaks: "A server that cannot be opened is a failure unless the daemon has it.",
		tests:  []test{{"./cmd/internal/doctor", "^TestDoctorOpensTheServerThatTheDaemonWould$"}},
	},
	{
		name:   "doctor-stand-by-is-a-failure",
		file:   "cmd/internal/doctor/network.go",
		old:    `	case errors.Is(err, status.NoLock):`,
		new:    `	case false:`,
		breaks: "A healthy stand-by passes the doctor.",
		tests: []test{{"./cmd/internal/doctor",
			"^TestAStandByIsHealthyUnlessItsChannelHasNoOther$"}},
	},
	{
		name:   "doctor-doca-needs-no-card",
		file:   "cmd/internal/doctor/card.go",
		old:    `	case (m.Doca || m.DocaRDMA) && !m.emulatesDOCA():`,
		new:    `	case false:`,
		breaks: "The doctor asks for what the provider doca needs of the card.",
		tests: []test{{"./cmd/internal/doctor",
			"^TestTheEmulationOfLibdocaNeedsNoCard$"}},
	},
}
