// SPDX-License-Identifier: Apache-2.0

package chaintest

import "testing"

// RunChannel runs the tests of a channel whose outcome must not depend on providers or isolation.
func RunChannel(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"WhatIsWrittenIsRead", testWhatIsWrittenIsRead},
		{"ReadsStopAtTheEndOfTheVolume", testReadsStopAtTheEndOfTheVolumeAndWritesFailThere},
		{"ZeroesAndTrim", testZeroesAndTrimWorkOnWholeBlocks},
		{"BadRequestsFail", testBadRequestsFailAndTheSessionContinues},
		{"NoIOAllocates", testNoIOAllocatesAnywhereInTheChain},
		{"ALostTarget", testALostTargetFailsEverythingInFlightOnceAndServesAgain},
		{"ALostRelay", testALostRelayFailsEverythingInFlightOnce},
		{"AnIOThatTimesOut", testAnIOThatTimesOutFailsAndItsBufferIsLeftAlone},
		{"AVolumeError", testAVolumeErrorFailsOnlyThatIO},
		{"ASessionCanBeDestroyed", testASessionCanBeDestroyedAtEveryStep},
		{"RequestsInFlightAtTheLoss", testRequestsInFlightAtTheLossCompleteAfterIt},
		{"LostUnflushedWrites", testLostUnflushedWritesFailTheNextFlushOfEachQueue},
		{"ConcurrentClients", testConcurrentClientsDoNotInterfere},
		{"ConsecutiveSessions", testConsecutiveSessionsLeakNothing},
		{"AClientThatVanishes", testAClientThatVanishesIsReleasedAndOthersContinue},
	} {
		t.Run(test.name, test.run)
	}
}
