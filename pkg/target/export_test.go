// SPDX-License-Identifier: Apache-2.0

package target

import "time"

// SetReleaseTimeout replaces the time that the release of a session may take. Run must not have
// been called.
func (t *Target) SetReleaseTimeout(timeout time.Duration) { t.releaseTimeout = timeout }

// SetAnswerTimeout replaces the time that a device may keep a request of a session that has ended.
// Run must not have been called.
func (t *Target) SetAnswerTimeout(timeout time.Duration) { t.answerTimeout = timeout }

// ReservedMemory returns how many bytes count towards Config.StagingLimit.
func (t *Target) ReservedMemory() int64 { return t.memory.Load() }
