// SPDX-License-Identifier: Apache-2.0

package controlmsgtest

import "github.com/zc-relay/zc-relay/pkg/controlmsg"

// Lingering is a transport whose Close does not return before Until is closed.
type Lingering struct {
	controlmsg.Transport
	Until <-chan struct{}
}

func (l Lingering) Close() error {
	<-l.Until
	return l.Transport.Close()
}
