// SPDX-License-Identifier: Apache-2.0

//go:build ceph && soak

package e2e

import "time"

func init() {
	failOverRounds = 102
	contestRounds, contestTime = 10, time.Minute
}
