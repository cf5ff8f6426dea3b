// SPDX-License-Identifier: Apache-2.0

//go:build soak

package resources

import "time"

func init() { *duration = 10 * time.Minute }
