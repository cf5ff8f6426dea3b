// SPDX-License-Identifier: Apache-2.0

//go:build race

package resources

import "github.com/zc-relay/zc-relay/internal/testkit"

func init() {
	programs = testkit.Race
	residentSlack *= 8 // the race detector keeps shadow memory
}
