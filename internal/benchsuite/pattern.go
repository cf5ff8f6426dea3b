package benchsuite

import (
	"fmt"
	"strings"
)

// Pattern is the kind of load, by the name that fio gives it. It is a flag
// value.
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

// String implements pflag.Value.
func (p *Pattern) String() string { return string(*p) }

// Set implements pflag.Value.
func (p *Pattern) Set(text string) error {
	for _, known := range Patterns() {
		if text == string(known) {
			*p = known
			return nil
		}
	}
	return fmt.Errorf("pattern %q is none of %s", text, patternNames())
}

// Type implements pflag.Value.
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

// Writes reports whether the volume is changed.
func (p Pattern) Writes() bool { return p != Read && p != RandomRead }

// ReadPercent is the share of reads of a pattern, of which mixed says how
// much that is for RandomMixed.
func (p Pattern) ReadPercent(mixed int) int {
	switch p {
	case Read, RandomRead:
		return 100
	case RandomMixed:
		return mixed
	}
	return 0
}
