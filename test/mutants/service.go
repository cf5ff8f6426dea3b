// SPDX-License-Identifier: Apache-2.0

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
		name:   "program-explains-codes-of-wrong-calls",
		file:   "cmd/internal/program/run.go",
		old:    "exit.code == ExitUsage && !exit.isRejected {\n		return \"\", false",
		new:    "exit.code == ExitUsage && exit.isRejected {\n		return \"\", false",
		breaks: "An error names the command that explains its code, except that of a wrong call.",
		tests: []test{{"./cmd/internal/program",
			"^TestAnErrorNamesTheCommandThatExplainsItsCode$"}},
	},
	{
		name:   "explain-finds-no-names-of-doca",
		file:   "cmd/internal/explain/explain.go",
		old:    `name = strings.TrimPrefix(name, "DOCA_ERROR_")`,
		new:    `name = strings.TrimPrefix(name, "DOCA_")`,
		breaks: "A code is explained by its name here and in DOCA, and by its number.",
		tests:  []test{{"./cmd/internal/explain", "^TestACodeIsFoundByEachOfItsNames$"}},
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
		name: "channels-of-the-configuration-are-removed-by-command",
		file: "cmd/zc-relay/command/channels.go",
		old: `	case defined >= 0:
`,
		new: `	case defined > len(configured):
`,
		breaks: "A channel that the configuration defines is changed only there.",
		tests: []test{{"./cmd/zc-relay/command",
			"^TestAChannelOfTheConfigurationIsNotChangedByCommand$"}},
	},
	{
		name: "channels-succeed-before-they-are-kept",
		file: "cmd/zc-relay/command/channels.go",
		old: `		if err := l.kept.Store(now); err != nil {
			return nil, err
		}
		if err := l.relay.AddChannel`,
		new: `		_ = l.kept.Store(now)
		if err := l.relay.AddChannel`,
		breaks: "A command says that a channel was added only when that is durable.",
		tests: []test{{"./cmd/zc-relay/command",
			"^TestAChangeSucceedsOnlyWhenItIsKept$"}},
	},
	{
		name: "channels-that-cannot-be-served-are-kept",
		file: "cmd/zc-relay/command/channels.go",
		old: `		if err := l.relay.AddChannel(l.ctx, l.settings(&c)); err != nil {
			return nil, errors.Join(err, l.kept.Store(kept))`,
		new: `		if err := l.relay.AddChannel(l.ctx, l.settings(&c)); err != nil {
			return nil, err`,
		breaks: "What could not be added does not come with the next start.",
		tests: []test{{"./cmd/zc-relay/command",
			"^TestAChangeThatDoesNotTakeEffectIsNotKept$"}},
	},
	{
		name:   "channels-are-defined-in-two-places",
		file:   "cmd/internal/config/kept.go",
		old:    `if origin, twice := c.Defines(&kept[i]); twice {`,
		new:    `if origin, twice := c.Defines(&kept[i]); twice && i > 0 {`,
		breaks: "A channel that is kept and configured is an error that names both places.",
		tests:  []test{{"./cmd/internal/config", "^TestAChannelIsDefinedInOnePlace$"}},
	},
	{
		name:   "channels-stay-at-their-former-target",
		file:   "pkg/relay/change.go",
		old:    `			return slices.Contains(settings.Targets, target.Address)`,
		new:    `			return len(settings.Targets) > 0`,
		breaks: "A channel that is moved takes its sessions along.",
		tests: []test{{"./pkg/relay",
			"^TestSessionsLeaveTheTargetThatAChannelIsMovedFrom$"}},
	},
	{
		name: "files-are-named-before-they-are-durable",
		file: "internal/files/replace_linux.go",
		old: `	return sync(file)
`,
		new: `	return nil
`,
		breaks: "A file that replaces another is durable before it has the name.",
		tests:  []test{{"./internal/files", "^TestAFileIsDurableBeforeItIsNamed$"}},
	},
	{
		name: "files-have-names-that-are-not-durable",
		file: "internal/files/replace_linux.go",
		old: `	return sync(directory)
`,
		new: `	return nil
`,
		breaks: "A file that has been replaced has its new content after a crash, too.",
		tests:  []test{{"./internal/files", "^TestAFileIsDurableBeforeItIsNamed$"}},
	},
	{
		name:   "files-are-replaced-piece-by-piece",
		file:   "internal/files/replace_linux.go",
		old:    `	if err := os.Rename(temporary, path); err != nil {`,
		new:    `	if err := os.WriteFile(path, content, mode); err != nil {`,
		breaks: "A file that is being replaced has its former content or the new one.",
		tests:  []test{{"./internal/files", "^TestAFileIsReplacedAsAWhole$"}},
	},
	{
		name:   "files-of-others-are-trusted",
		file:   "internal/files/replace_linux.go",
		old:    `mode&othersMayWrite != 0 {`,
		new:    `mode&othersMayWrite == othersMayWrite {`,
		breaks: "A program does not trust its own file if another user can change it.",
		tests:  []test{{"./internal/files", "^TestAFileThatOthersCanChangeIsNotReadAsOwn$"}},
	},
	{
		name:   "admin-waits-for-ever-for-a-silent-listener",
		file:   "pkg/admin/client.go",
		old:    `	ctx, cancel := bounded(ctx, c.timeout)`,
		new:    `	ctx, cancel := context.WithCancel(ctx)`,
		breaks: "A call of pkg/admin ends though the listener is silent.",
		tests:  []test{{"./pkg/admin", "^TestACallEndsThoughTheListenerIsSilent$"}},
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
