// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"errors"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestBothSidesDecideAlikeAboutTLSForData(t *testing.T) {
	const off, wanted, required = DataSecurityOff, DataSecurityTLS, DataSecurityRequired
	const no, yes, never = "no", "yes", "never"
	for pair, want := range map[[2]DataSecurity]string{
		{off, off}: no, {off, wanted}: no, {wanted, off}: no,
		{wanted, wanted}: yes, {wanted, required}: yes, {required, wanted}: yes,
		{required, required}: yes,
		{off, required}:      never, {required, off}: never,
	} {
		relay, target := pair[0], pair[1]
		useTLS, err := DataUsesTLS(relay, target)
		if useTLS != (want == yes) || (err != nil) != (want == never) {
			t.Errorf("%v at the relay, %v at the target: %v, %v", relay, target, useTLS, err)
		}
		if err != nil && (!errors.Is(err, status.BadConfig) || !strings.Contains(err.Error(),
			relay.String()+" at the relay and "+target.String()+" at the target")) {
			t.Error(err)
		}
	}
}
