// SPDX-License-Identifier: Apache-2.0

package main

// secureMutants break what TLS on data connections promises, above its records.
var secureMutants = []mutant{
	{
		name: "secure-data-of-another-session",
		file: "pkg/target/accept.go",
		old:  "return s.binder.Check(data, binding)",
		new: `_ = s.binder.Check(data, binding)
		return nil`,
		breaks: "A TLS connection belongs to the session of its control connection only.",
		tests:  []test{{"./pkg/target", "^TestATokenCountsOnATLSConnectionOfItsSessionOnly$"}},
	},
	{
		name:   "secure-session-with-a-plain-connection",
		file:   "pkg/target/accept.go",
		old:    "case s.binder == nil && protection == rdma.Unprotected:",
		new:    "case protection == rdma.Unprotected:",
		breaks: "A session with TLS has no connection without it.",
		tests:  []test{{"./pkg/target", "^TestATokenCountsOnATLSConnectionOfItsSessionOnly$"}},
	},
	{
		name:   "secure-connection-of-a-plain-session",
		file:   "pkg/target/accept.go",
		old:    "case s.binder == nil && protection == rdma.Unprotected:",
		new:    "case s.binder == nil:",
		breaks: "A session that was agreed on without TLS has no connection with it.",
		tests:  []test{{"./pkg/target", "^TestASessionWithoutTLSHasNoConnectionWithIt$"}},
	},
	{
		name: "secure-token-is-used-up-by-others",
		file: "pkg/target/tokens.go",
		old: `	if err := check(record.session); err != nil {
		return tokenRecord{}, err
	}
	delete(r.records, t)`,
		new: `	delete(r.records, t)
	if err := check(record.session); err != nil {
		return tokenRecord{}, err
	}`,
		breaks: "Who presents another session's token does not keep its relay from connecting.",
		tests: []test{{"./pkg/target", "^(TestATokenIsValidOnceFromItsSource|" +
			"TestATokenCountsOnATLSConnectionOfItsSessionOnly)$"}},
	},
	{
		name: "secure-target-keeps-its-certificate",
		file: "pkg/target/target.go",
		old:  "func() *tls.Config { return t.config.TLS.DataServer(*t.allowedNames.Load()) },",
		new: `func(c *tls.Config) func() *tls.Config {
			return func() *tls.Config { return c }
		}(t.config.TLS.DataServer(*t.allowedNames.Load())),`,
		breaks: "The next data connection uses a renewed certificate, and the present names.",
		tests: []test{{"./pkg/target", "^(TestADataConnectionUsesARenewedCertificate|" +
			"TestARelayThatIsNoLongerAllowedLosesItsDataConnections)$"}},
	},
	{
		name:   "secure-is-agreed-on-against-the-will-of-one-side",
		file:   "pkg/controlmsg/data_security.go",
		old:    "if isRequired && isOff {",
		new:    "if isRequired && isOff && relay == target {",
		breaks: "There is no session if one side requires TLS, and the other one has none.",
		tests: []test{{"./pkg/controlmsg", "^TestBothSidesDecideAlikeAboutTLSForData$"},
			{"./pkg/target", "^TestATargetThatRequiresTLSServesNobodyWithout$"}},
	},
	{
		name:   "secure-lane-trusts-its-device",
		file:   "pkg/datapath/relay_lane.go",
		old:    "if config.TLS != nil && established.Parameters().Protection == rdma.Unprotected {",
		new:    "if config.TLS != nil && established.Parameters().Transport == \"plain\" {",
		breaks: "A lane that needs TLS sends nothing on a connection without it.",
		tests: []test{{"./pkg/datapath",
			"^TestALaneSendsNothingOnAConnectionWithoutTheProtectionThatItNeeds$"}},
	},
	{
		name:   "secure-listener-requires-nothing",
		file:   "pkg/rdma/iwarp/tls.go",
		old:    "if secure.Required {",
		new:    "if secure.Required && secure.Config == nil {",
		breaks: "A listener that requires TLS reads nothing from peers without it.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestPeersWithoutTLSAreTurnedAwayBeforeMPAIsRead$"}},
	},
	{
		name:   "secure-first-byte",
		file:   "pkg/rdma/iwarp/tls.go",
		old:    "if peeked.first[0] == clientHello {",
		new:    "if secure.Required {",
		breaks: "A listener that merely wants TLS serves peers with and without it.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestTheFirstByteTellsWhoUsesTLS$"}},
	},
	{
		name:   "secure-handshake-without-end",
		file:   "pkg/rdma/internal/softrdma/pending.go",
		old:    "ctx, cancel := context.WithTimeout(b.ctx, c.Timeout)",
		new:    "ctx, cancel := context.WithCancel(b.ctx)",
		breaks: "A peer that stalls in the handshake of TLS is dropped.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestAHandshakeOfTLSTakesNoLongerThanItMay$"}},
	},
	{
		name:   "secure-handshake-of-any-length",
		file:   "pkg/rdma/internal/tlsrecord/handshake.go",
		old:    "if c.total >= maxHandshake {",
		new:    "if c.total >= maxHandshake<<10 {",
		breaks: "A peer that has not proved its identity sends little.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestAHandshakeOfTLSSendsNoMoreThanItMay$"}},
	},
	{
		name:   "secure-proof-is-not-sent",
		file:   "pkg/rdma/iwarp/dial.go",
		old:    "conn, privateData = secured, config.TLS.PrivateData(secured.ChannelBinding())",
		new:    "conn = secured",
		breaks: "A connection proves by its binding which session it belongs to.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestTheFirstByteTellsWhoUsesTLS$"}},
	},
	{
		name:   "secure-cut-is-an-end",
		file:   "pkg/rdma/iwarp/connection.go",
		old:    "if t := c.socket.tls; t != nil && !t.ended {",
		new:    "if t := c.socket.tls; t != nil && !t.ended && c.useCRC {",
		breaks: "Whoever cuts a connection cannot make it look like its end.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestWhoeverChangesTLSOnItsWayHarmsNobody$"}},
	},
	{
		name: "secure-data-before-its-tag",
		file: "pkg/rdma/internal/tlsrecord/session.go",
		old: `	if err != nil {
		return nil, violation(BadRecordMAC,`,
		new: `	if err != nil && len(sealed) < 1000 {
		return nil, violation(BadRecordMAC,`,
		breaks: "Nothing is placed into memory before its record has been authenticated.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestWhoeverChangesTLSOnItsWayHarmsNobody$"}},
	},
	{
		name:   "secure-key-for-ever",
		file:   "pkg/rdma/iwarp/tls.go",
		old:    "if t.session.UpdateDue() {",
		new:    "if t.session == nil {",
		breaks: "A connection changes its keys before their limit.",
		tests:  []test{{"./pkg/rdma/iwarp", "^TestKeysChangeUnderLoad$"}},
	},
	{
		name: "secure-plain-tcp-if-shared-memory-fails",
		file: "pkg/rdma/auto/connect.go",
		old: `	config.Queue = q.tcp
	connection, err := d.tcp.Connect(ctx, remote, config)`,
		new: `	config.Queue = q.tcp
	if unshared != nil {
		config.TLS = nil
	}
	connection, err := d.tcp.Connect(ctx, remote, config)`,
		breaks: "A connection that cannot use shared memory uses TLS.",
		tests:  []test{{"./pkg/rdma/auto", "^TestEachTransportIsProtected$"}},
	},
}
