// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/retry"
)

const infiniteText = "infinite"

// Types of values with their own text form.
const (
	stringType = "string"
	listType   = "list"
	cpusType   = "cpus"
)

// variable is a Value made of functions.
type variable struct {
	set  func(text string) error
	get  func() string
	kind string
	// extremes holds the texts of the smallest and largest values, and of all that are special.
	extremes []string
	words    []string // that are allowed, for completion; nil if there are others
}

// Words returns the words that are allowed, none if other values are, too.
func (v variable) Words() []string { return v.words }

func (v variable) Set(text string) error { return v.set(text) }
func (v variable) String() string        { return v.get() }
func (v variable) Type() string          { return v.kind }

func extremesOf(v Value) []string { return slices.Clone(v.(variable).extremes) }

// text is any text that check accepts; a nil check accepts everything.
func text(p *string, check func(string) error) variable {
	return variable{kind: stringType, get: func() string { return *p }, set: func(s string) error {
		if check != nil {
			if err := check(s); err != nil {
				return err
			}
		}
		*p = s
		return nil
	}}
}

// choice is one of several words.
func choice(p *string, options ...string) Value {
	v := text(p, func(s string) error {
		if !slices.Contains(options, s) {
			return fmt.Errorf("must be one of %s", strings.Join(options, ", "))
		}
		return nil
	})
	v.extremes, v.words = options, options
	return v
}

func boolean(p *bool) Value {
	return variable{kind: "bool", extremes: []string{"false", "true"},
		get: func() string { return strconv.FormatBool(*p) },
		set: func(s string) error {
			switch s {
			case "true", "false":
				*p = s == "true"
				return nil
			}
			return errors.New("must be true or false")
		}}
}

// integer is a whole number between two others.
func integer[T int | uint8 | uint16 | uint32](p *T, least, most T) Value {
	return variable{kind: "int", extremes: []string{fmt.Sprint(least), fmt.Sprint(most)},
		get: func() string { return fmt.Sprint(*p) },
		set: func(s string) error {
			n, err := strconv.ParseInt(size.ExpandCount(s), 10, 64)
			if err != nil || n < int64(least) || n > int64(most) {
				return fmt.Errorf("must be a whole number from %d to %d", least, most)
			}
			*p = T(n)
			return nil
		}}
}

// oneOf is one of several numbers.
func oneOf(p *int, numbers ...int) Value {
	options := make([]string, len(numbers))
	for i, n := range numbers {
		options[i] = strconv.Itoa(n)
	}
	word := strconv.Itoa(*p)
	v := choice(&word, options...)
	return variable{kind: "int", extremes: options, get: func() string { return strconv.Itoa(*p) },
		set: func(s string) error {
			err := v.Set(s)
			if err == nil {
				*p, err = strconv.Atoi(s)
			}
			return err
		}}
}

// orWord extends v by a word that stands for the value special.
func orWord[T comparable](v Value, p *T, word string, special T) Value {
	return variable{kind: v.Type(), extremes: append(extremesOf(v), word), get: func() string {
		if *p == special {
			return word
		}
		return v.String()
	}, set: func(s string) error {
		if s == word {
			*p = special
			return nil
		}
		if err := v.Set(s); err != nil {
			return fmt.Errorf("%w, or %q", err, word)
		}
		return nil
	}}
}

// attempts is a number of attempts, from 0, or infinite.
func attempts(p *retry.Count) Value {
	extremes := []string{"0", retry.Times(math.MaxUint32).String(), infiniteText}
	return described(p, extremes, `must be a number of attempts, of which 0 is none, or "infinite"`)
}

// within is a time limit, from 0, or infinite.
func within(p *retry.Bound) Value {
	extremes := []string{"0s", "1ns", time.Duration(math.MaxInt64).String(), infiniteText}
	return described(p, extremes,
		`must be a duration with a unit, for instance 500ms or 30s, of which 0s is no time at all, or "infinite"`)
}

// described is v with another error text.
func described(v Value, extremes []string, allowed string) Value {
	return variable{kind: v.Type(), extremes: extremes, get: v.String, set: func(s string) error {
		if v.Set(s) != nil {
			return errors.New(allowed)
		}
		return nil
	}}
}

// duration is a duration from least to most.
func duration(p *time.Duration, least, most time.Duration) Value {
	return variable{kind: "duration", extremes: []string{least.String(), most.String()},
		get: func() string { return p.String() },
		set: func(s string) error {
			d, err := time.ParseDuration(s)
			if err != nil {
				return program.DurationError(s)
			}
			switch {
			case d < least && most == longest:
				return fmt.Errorf("must be at least %v", least)
			case d < least || d > most:
				return fmt.Errorf("must be from %v to %v", least, most)
			}
			*p = d
			return nil
		}}
}

// longest limits durations, so that sums do not overflow.
const longest = 365 * 24 * time.Hour

// bound is a duration of at least the given one, or infinite.
func bound(p *retry.Bound, least time.Duration) Value {
	extremes := []string{least.String(), (least + 1).String(), longest.String(), infiniteText}
	get := func() string { return p.String() }
	return variable{kind: p.Type(), extremes: extremes, get: get, set: func(s string) error {
		if s == infiniteText {
			*p = retry.Forever()
			return nil
		}
		var d time.Duration
		if err := duration(&d, least, longest).Set(s); err != nil {
			return fmt.Errorf("%w, or %q", err, infiniteText)
		}
		*p = retry.Within(d)
		return nil
	}}
}

// byteSize is a size between two others.
func byteSize[T uint32 | uint64](p *T, least, most size.Bytes) Value {
	return variable{kind: "size", extremes: []string{least.String(), most.String()},
		get: func() string { return size.Bytes(*p).String() },
		set: func(s string) error {
			b, err := size.Parse(s)
			if err != nil {
				return err
			}
			if b < least || b > most {
				return fmt.Errorf("must be from %v to %v", least, most)
			}
			*p = T(b)
			return nil
		}}
}

// ipAddress is an address without a port. If it is optional, "" is no address. portHint says where
// the port belongs, if there is a place for it.
func ipAddress(p *netip.Addr, optional bool, portHint string) Value {
	return variable{kind: "IP", get: func() string {
		if !p.IsValid() {
			return ""
		}
		return p.String()
	}, set: func(s string) error {
		if s == "" && optional {
			*p = netip.Addr{}
			return nil
		}
		a, err := netip.ParseAddr(s)
		if err != nil {
			if both, err := netip.ParseAddrPort(s); err == nil {
				return fmt.Errorf("must be an IP address without a port, for instance %v%s",
					both.Addr(), portHint)
			}
			return errors.New("must be an IP address, for instance 10.0.0.5")
		}
		*p = a.Unmap()
		return nil
	}}
}

// cpuList is a list of CPUs in the kernel's format.
func cpuList(p *[]int) Value {
	return variable{kind: cpusType, get: func() string { return joinInts(*p) },
		set: func(s string) error {
			if s == "" {
				*p = nil
				return nil
			}
			cpus, err := affinity.ParseList(s)
			if err != nil {
				return err
			}
			*p = cpus
			return nil
		}}
}

func joinInts(list []int) string {
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, ",")
}

// words is a list of texts without commas.
func words(p *[]string, check func(string) error) Value {
	return variable{kind: listType, get: func() string { return strings.Join(*p, ",") },
		set: func(s string) error {
			if s == "" {
				*p = nil
				return nil
			}
			list := strings.Split(s, ",")
			for i, word := range list {
				list[i] = strings.TrimSpace(word)
				if err := check(list[i]); err != nil {
					return err
				}
				if slices.Contains(list[:i], list[i]) {
					return fmt.Errorf("%q is named twice", list[i])
				}
			}
			*p = list
			return nil
		}}
}
