// SPDX-License-Identifier: Apache-2.0

package main

// httpMutants break what the HTTP listeners let whom do.
var httpMutants = []mutant{
	{
		name:   "http-waits-for-a-body-that-nobody-reads",
		file:   "cmd/internal/adminserver/http.go",
		old:    "	_ = http.NewResponseController(w).SetReadDeadline(longAgo)\n",
		new:    "	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})\n",
		breaks: "A request that needs no body is answered without waiting for it.",
		tests: []test{{"./cmd/internal/adminserver",
			"^TestAReplyDoesNotWaitForABodyThatNobodyReads$"}},
	},
	{
		name:   "http-serves-everything-beyond-the-limit",
		file:   "cmd/internal/adminserver/connections.go",
		old:    "	c.reserved = true\n",
		new:    "	c.reserved = c.silent && false\n",
		breaks: "A connection that has no place is for health only.",
		tests:  []test{{"./cmd/internal/adminserver", "^TestSourcesShareTheConnections$"}},
	},
	{
		name:   "http-lets-a-source-have-all-places",
		file:   "cmd/internal/adminserver/connections.go",
		old:    "	case c.source.IsValid() && counts[c.source] >= maxPerSource:\n",
		new:    "	case c.source.IsValid() && counts[c.source] >= maxConnections:\n",
		breaks: "A source has a part of the connections.",
		tests:  []test{{"./cmd/internal/adminserver", "^TestFloodsFromOneAddressKeepNobodyOut$"}},
	},
	{
		name:   "http-accepts-any-token",
		file:   "cmd/internal/adminserver/admin.go",
		old:    "	return subtle.ConstantTimeCompare(want[:], got[:]) == 1\n",
		new:    "	return subtle.ConstantTimeCompare(want[:1], got[:0]) == 0\n",
		breaks: "Administration at a port needs the token.",
		tests: []test{{"./cmd/internal/adminserver",
			"^TestAPortForAdministrationNeedsAToken$"}},
	},
	{
		name:   "http-serves-unknown-users",
		file:   "cmd/internal/adminserver/access.go",
		old:    "	if err != nil || !isKnown {\n",
		new:    "	if err != nil {\n",
		breaks: "Nobody is served by the password that unknown users are compared with.",
		tests:  []test{{"./cmd/internal/adminserver", "^TestUsersNeedTheirPassword$"}},
	},
	{
		name:   "http-serves-any-host",
		file:   "cmd/internal/adminserver/access.go",
		old:    "	if a.web == nil || a.web.Current().IsPublic() {\n",
		new:    "	if a.web != nil && a.web.Current().IsPublic() {\n",
		breaks: "A page whose name resolves to this machine reads nothing.",
		tests:  []test{{"./cmd/internal/adminserver", "^TestOnlyNamesOfThisMachineAreServed$"}},
	},
	{
		name: "volumes-of-administrators-follow-links",
		file: "pkg/volume/file_linux.go",
		old:  "		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}\n",
		new:  "		Resolve: unix.RESOLVE_NO_MAGICLINKS}\n",
		breaks: "A volume that an administrator adds stays in its directory, whatever links are " +
			"there.",
		tests: []test{{"./cmd/target/command", "^TestAdministratorsAddVolumesOnlyWhereTheyMay$"}},
	},
}
