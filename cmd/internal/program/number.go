// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/internal/size"
)

// Range is the whole numbers that something may be.
type Range struct {
	Least, Most uint64
	Example     string // one or more of them
}

// Parse parses a number, which may end in k, M, or G.
func (r Range) Parse(text string) (uint64, error) {
	n, err := strconv.ParseUint(size.ExpandCount(text), 0, 64)
	if err == nil && n >= r.Least && n <= r.Most {
		return n, nil
	}
	const must = "must be a whole number "
	if r.Most >= math.MaxInt32 {
		return 0, fmt.Errorf(must+"of at least %d, for instance %s", r.Least, r.Example)
	}
	return 0, fmt.Errorf(must+"from %d to %d, for instance %s", r.Least, r.Most, r.Example)
}

// number is the value of a flag for a number in a range.
type number struct {
	pflag.Value
	allowed Range
}

// Limit makes a flag for a number accept only those in a range.
func Limit(flags *pflag.FlagSet, name string, allowed Range) {
	f := flags.Lookup(name)
	f.Value = &number{f.Value, allowed}
}

// Set sets the number.
func (n *number) Set(text string) error {
	v, err := n.allowed.Parse(text)
	if err != nil {
		return err
	}
	return n.Value.Set(strconv.FormatUint(v, 10))
}

// numberTypes holds the largest values of flags for numbers, by their types.
var numberTypes = map[string]uint64{"int": math.MaxInt, "int32": math.MaxInt32,
	"int64": math.MaxInt64, "uint": math.MaxUint, "uint16": math.MaxUint16,
	"uint32": math.MaxUint32, "uint64": math.MaxUint64}

// limitNumbers makes the flags of a command accept k, M, and G after numbers. Those that Limit was
// not called for accept every number of their type from 0.
func limitNumbers(command *cobra.Command) {
	limit := func(f *pflag.Flag) {
		_, isLimited := f.Value.(*number)
		_, isOurs := f.Value.(interface{ Words() []string }) // of package config
		most, isNumber := numberTypes[f.Value.Type()]
		if isLimited || isOurs || !isNumber {
			return
		}
		example := f.DefValue
		if example == "0" {
			example = "500 or 10k"
		}
		f.Value = &number{f.Value, Range{0, most, example}}
	}
	command.Flags().VisitAll(limit)
	command.PersistentFlags().VisitAll(limit)
}

// ExplainValue returns err, or if it is about the value of a flag that its type does not accept,
// what that type accepts.
func ExplainValue(err error) error {
	invalid, is := errors.AsType[*pflag.InvalidValueError](err)
	if !is {
		return err
	}
	cause := errors.Unwrap(invalid)
	if strings.HasPrefix(invalid.GetValue(), "--") {
		cause = errors.New("this is a flag, and the value is missing")
	}
	switch kind := invalid.GetFlag().Value.Type(); {
	case kind == "bool":
		cause = errors.New("must be true or false")
	case kind == "duration" && isRaw(invalid.GetValue(), cause):
		cause = DurationError(invalid.GetValue())
	}
	return fmt.Errorf("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), cause)
}

// isRaw reports whether err is what the standard library says of a text that is no duration.
func isRaw(text string, err error) bool {
	_, raw := time.ParseDuration(text)
	return raw != nil && raw.Error() == err.Error()
}

// DurationError says what is wrong with a text that is no duration.
func DurationError(text string) error {
	if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
		return fmt.Errorf("a duration needs a unit, for instance %ss or %sms", text, text)
	}
	return errors.New("must be a duration with a unit, for instance 500ms, 30s or 1m30s")
}
