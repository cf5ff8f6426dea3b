// SPDX-License-Identifier: Apache-2.0

package benchsuite

import (
	"fmt"
	"strings"
)

// Pattern is a kind of load, with fio's name for it. It is a flag value.
type Pattern string

// The patterns.
const (
	Read        Pattern = "read"
	Write       Pattern = "write"
	RandomRead  Pattern = "randread"
	RandomWrite Pattern = "randwrite"
	RandomMixed Pattern = "randrw"
)

// Patterns returns all patterns.
func Patterns() []Pattern {
	return []Pattern{Read, Write, RandomRead, RandomWrite, RandomMixed}
}

// String returns the name of the pattern.
func (p *Pattern) String() string { return string(*p) }

// Set accepts the name of a pattern.
func (p *Pattern) Set(text string) error {
	for _, known := range Patterns() {
		if text == string(known) {
			*p = known
			return nil
		}
	}
	return fmt.Errorf("pattern %q is not one of %s", text, patternNames())
}

// Type returns the values for help texts.
func (p *Pattern) Type() string { return strings.ReplaceAll(patternNames(), ", ", "|") }

func patternNames() string {
	var names []string
	for _, p := range Patterns() {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}

// Random reports whether offsets are drawn at random.
func (p Pattern) Random() bool { return p != Read && p != Write }

// Writes reports whether the pattern changes the volume.
func (p Pattern) Writes() bool { return p != Read && p != RandomRead }

// ReadPercent returns the percentage of reads: mixed for RandomMixed, otherwise 100 or 0.
func (p Pattern) ReadPercent(mixed int) int {
	switch p {
	case Read, RandomRead:
		return 100
	case RandomMixed:
		return mixed
	}
	return 0
}
