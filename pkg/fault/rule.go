// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Limits of a rule.
const (
	MaxRuleLength = 256       // bytes of its text form
	maxDelay      = time.Hour // of an operation
	maxNameLength = 32        // bytes of a switch or kind
)

// Rule makes operations go wrong. A condition that is 0 or "" always holds. Each rule counts by
// itself the operations that its Seam, Operation, Kind, Range, and Switch admit, beginning with 1;
// the other conditions decide by this count.
type Rule struct {
	Seam      Seam
	Operation string // of the seam, or Any
	// Kind restricts a rule of the seam Control to one kind of message, for instance "open_volume".
	Kind string
	// Range restricts a rule of the seam Volume to operations that touch these bytes.
	Range Range
	// Switch is the name of a switch that must be on; see Injector.TurnOn.
	Switch string
	// Every matches each operation whose number is a multiple of it.
	Every uint64
	// Nth matches only the operation with this number.
	Nth uint64
	// After matches operations with higher numbers.
	After uint64
	// Probability matches this share of the operations. Which ones depends only on their numbers
	// and Seed, which also selects the bits that Corrupt inverts.
	Probability float64
	Seed        uint64

	Action Action
	Delay  time.Duration // of the action Delay
	Code   status.Code   // of the action Error
	// Cause is the error number behind Code, if the rule names one.
	Cause status.Cause
}

// Range is Length bytes of a volume from Offset on. The zero value stands for all bytes.
type Range struct{ Offset, Length uint64 }

// touches reports whether an operation on length bytes at offset has a byte in the range.
func (r Range) touches(offset, length uint64) bool {
	return offset < r.Offset+r.Length && r.Offset-min(r.Offset, offset) < length
}

// Syntax describes the text form in one line.
const Syntax = "SEAM:OPERATION[:CONDITION...]:ACTION, " +
	"where CONDITION is every=N, nth=N, after=N, p=P, seed=N, while=SWITCH, kind=MESSAGE, or " +
	"range=OFFSET+LENGTH, and " +
	"ACTION is trace, delay=TIME, error=CODE|ERRNO, drop, duplicate, corrupt, or freeze"

// Parse parses the text form of a rule.
func Parse(text string) (Rule, error) {
	r, err := parse(text)
	if err != nil {
		return Rule{}, status.Errorf(status.InvalidValue, "fault rule %q: %w; the syntax is %s",
			text, err, Syntax)
	}
	return r, nil
}

func parse(text string) (Rule, error) {
	var r Rule
	if len(text) > MaxRuleLength {
		return r, fmt.Errorf("it has %d bytes, the limit is %d", len(text), MaxRuleLength)
	}
	parts := strings.Split(text, ":")
	if len(parts) < 3 {
		return r, fmt.Errorf("it needs a seam, an operation, and an action")
	}
	r.Seam, r.Operation = Seam(parts[0]), parts[1]
	seen := make(map[string]bool)
	for _, part := range parts[2:] {
		key, value, hasValue := strings.Cut(part, "=")
		if seen[key] {
			return r, fmt.Errorf("%q is there twice", key)
		}
		seen[key] = true
		if err := r.set(key, value, hasValue); err != nil {
			return r, fmt.Errorf("%q: %w", part, err)
		}
	}
	return r, r.validate()
}

func (r *Rule) set(key, value string, hasValue bool) (err error) {
	switch key {
	case "every":
		r.Every, err = parseCount(value)
	case "nth":
		r.Nth, err = parseCount(value)
	case "after":
		r.After, err = parseCount(value)
	case "p":
		r.Probability, err = strconv.ParseFloat(value, 64)
		if err != nil || !(r.Probability > 0 && r.Probability <= 1) {
			err = fmt.Errorf("a probability is above 0 and at most 1")
		}
	case "seed":
		if r.Seed, err = strconv.ParseUint(value, 10, 64); err != nil {
			err = fmt.Errorf("a seed is a number")
		}
	case "while":
		r.Switch, err = parseName(value)
	case "kind":
		r.Kind, err = parseName(value)
	case "range":
		r.Range, err = parseRange(value)
	default:
		return r.setAction(key, value, hasValue)
	}
	return err
}

func (r *Rule) setAction(key, value string, hasValue bool) (err error) {
	for a := Trace; a < actionCount; a++ {
		if a.String() != key {
			continue
		}
		if r.Action != None {
			return fmt.Errorf("a rule has one action, and this one has %v already", r.Action)
		}
		r.Action = a
		switch {
		case a == Delay:
			r.Delay, err = time.ParseDuration(value)
		case a == Error:
			r.Code, r.Cause, err = parseError(value)
		case hasValue:
			err = fmt.Errorf("the action has no value")
		}
		return err
	}
	return fmt.Errorf("it is neither a condition nor an action")
}

func parseCount(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("a count is a number above 0")
	}
	return n, nil
}

func parseRange(text string) (Range, error) {
	offsetText, lengthText, _ := strings.Cut(text, "+")
	offset, err := size.Parse(offsetText)
	length, lengthErr := size.Parse(lengthText)
	if err != nil || lengthErr != nil || length == 0 || offset+length < offset {
		return Range{}, fmt.Errorf("a range is an offset and a length above 0, such as 1MiB+64KiB")
	}
	return Range{Offset: uint64(offset), Length: uint64(length)}, nil
}

func parseName(text string) (string, error) {
	if text == "" || len(text) > maxNameLength || strings.ContainsFunc(text, isForbidden) {
		return "", fmt.Errorf("a name has 1 to %d lower-case letters, digits, - and _",
			maxNameLength)
	}
	return text, nil
}

func isForbidden(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

func parseError(text string) (status.Code, status.Cause, error) {
	for code := status.Success + 1; code.Known(); code++ {
		if code.String() == text {
			return code, status.CauseUnknown, nil
		}
	}
	if cause, ok := status.ParseErrno(text); ok {
		return status.IOFailed, cause, nil
	}
	return 0, 0, fmt.Errorf("it is the name neither of an error code, such as %v, nor of an "+
		"error number, such as ENOSPC", status.IOFailed)
}

// validate checks the fields relative to each other.
func (r *Rule) validate() error {
	operations := operationsOf(r.Seam)
	if operations == nil {
		var names []string
		for _, s := range seams {
			names = append(names, string(s.name))
		}
		return fmt.Errorf("the seams are %s", strings.Join(names, ", "))
	}
	may, exists := allowed(r.Seam, r.Operation)
	if !exists {
		var names []string
		for _, o := range operations {
			names = append(names, o.name)
		}
		return fmt.Errorf("the operations of %s are %s, and %s", r.Seam,
			strings.Join(names, ", "), Any)
	}
	switch {
	case r.Action == None:
		return fmt.Errorf("it has no action")
	case !may.has(r.Action):
		return fmt.Errorf("the actions of %s:%s are %v", r.Seam, r.Operation, may)
	case r.Action == Delay && (r.Delay <= 0 || r.Delay > maxDelay):
		return fmt.Errorf("a delay is above 0 and at most %v", maxDelay)
	case r.Action != Delay && r.Delay != 0, r.Action != Error && r.Code != status.Success,
		r.Action == Error && (r.Code == status.Success || !r.Code.Known()),
		r.Cause != status.CauseUnknown && (r.Code != status.IOFailed || r.Cause.Unwrap() == nil):
		return fmt.Errorf("delay, code, or cause does not belong to the action %v", r.Action)
	case r.Kind != "" && r.Seam != Control:
		return fmt.Errorf("only messages of the seam %s have a kind", Control)
	case r.Range != Range{} && r.Seam != Volume:
		return fmt.Errorf("only operations of the seam %s have a range", Volume)
	case r.Range.Offset > 0 && r.Range.Length == 0, r.Range.Offset+r.Range.Length < r.Range.Offset:
		return fmt.Errorf("the range is empty or ends beyond any volume")
	case !(r.Probability >= 0 && r.Probability <= 1):
		return fmt.Errorf("a probability is at most 1")
	}
	return nil
}

// String returns the text form, which Parse accepts.
func (r Rule) String() string {
	b := []byte(string(r.Seam) + ":" + r.Operation)
	for _, name := range []struct{ key, value string }{{"kind", r.Kind}, {"while", r.Switch}} {
		if name.value != "" {
			b = fmt.Appendf(b, ":%s=%s", name.key, name.value)
		}
	}
	if r.Range.Length != 0 {
		b = fmt.Appendf(b, ":range=%v+%v", size.Bytes(r.Range.Offset), size.Bytes(r.Range.Length))
	}
	for _, count := range []struct {
		key   string
		value uint64
	}{{"every", r.Every}, {"nth", r.Nth}, {"after", r.After}} {
		if count.value != 0 {
			b = fmt.Appendf(b, ":%s=%d", count.key, count.value)
		}
	}
	if r.Probability != 0 {
		b = append(b, ":p="...)
		b = strconv.AppendFloat(b, r.Probability, 'g', -1, 64)
	}
	if r.Seed != 0 {
		b = fmt.Appendf(b, ":seed=%d", r.Seed)
	}
	b = append(b, ":"+r.Action.String()...)
	switch r.Action {
	case Delay:
		b = fmt.Appendf(b, "=%v", r.Delay)
	case Error:
		if r.Cause != status.CauseUnknown {
			return string(b) + "=" + r.Cause.String()
		}
		b = fmt.Appendf(b, "=%v", r.Code)
	}
	return string(b)
}
