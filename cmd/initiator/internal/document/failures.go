// SPDX-License-Identifier: Apache-2.0

package document

import (
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Failures counts the failed requests of one thread.
type Failures struct {
	Count  uint64
	codes  [status.CodeCount]uint64
	causes [status.CauseCount]uint64
}

// Add counts a failed request. An undefined code counts as Unknown.
func (f *Failures) Add(result *client.Result) {
	code := result.Code
	if !code.Known() {
		code = status.Unknown
	}
	f.Count++
	f.codes[code]++
	f.causes[result.Cause]++
}

// Merge adds the counts of another thread.
func (f *Failures) Merge(other *Failures) {
	f.Count += other.Count
	for code, count := range other.codes {
		f.codes[code] += count
	}
	for cause, count := range other.causes {
		f.causes[cause] += count
	}
}

// ByCode returns the counts that are not 0 by the name of the status code.
func (f *Failures) ByCode() map[string]uint64 {
	counts := map[string]uint64{}
	for code, count := range f.codes {
		if count > 0 {
			counts[status.Code(code).String()] = count
		}
	}
	return counts
}

// ByCause returns the counts that are not 0 by the cause at the target, without those whose cause
// is not known.
func (f *Failures) ByCause() map[string]uint64 {
	counts := map[string]uint64{}
	for cause, count := range f.causes {
		if c := status.Cause(cause); count > 0 && c != status.CauseUnknown {
			counts[c.String()] = count
		}
	}
	return counts
}
