// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"
)

// infinite is the text form of a limit that bounds nothing.
const infinite = "infinite"

// state distinguishes the three kinds of limit. The zero value is unset.
type state uint8

const (
	unset state = iota
	finite
	unbounded
)

// Count limits a number of attempts. The zero value is unset, which is neither 0 nor infinite:
// callers supply the default. Count is a pflag.Value, an encoding.TextUnmarshaler, and an
// encoding.TextMarshaler.
type Count struct {
	state state
	n     uint32
}

// Times allows up to n attempts; 0 allows none.
func Times(n uint32) Count { return Count{finite, n} }

// AnyNumber allows any number of attempts.
func AnyNumber() Count { return Count{state: unbounded} }

// IsSet reports whether c is a number or infinite.
func (c Count) IsSet() bool { return c.state != unset }

// Or returns c if it is set, otherwise other.
func (c Count) Or(other Count) Count {
	if c.IsSet() {
		return c
	}
	return other
}

// Number returns the limit. ok is false if c is infinite or unset.
func (c Count) Number() (n uint32, ok bool) { return c.n, c.state == finite }

// canFollow reports whether another attempt may follow done attempts.
func (c Count) canFollow(done uint32) bool { return c.state == unbounded || done < c.n }

// String returns the text that Set reads: a number, "infinite", or "" if c is unset.
func (c Count) String() string {
	switch c.state {
	case finite:
		return strconv.FormatUint(uint64(c.n), 10)
	case unbounded:
		return infinite
	}
	return ""
}

// Set parses a number or "infinite".
func (c *Count) Set(text string) error {
	if text == infinite {
		*c = AnyNumber()
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return fmt.Errorf("number of attempts %q is neither a number (0 means none) nor %q", text,
			infinite)
	}
	*c = Times(uint32(n))
	return nil
}

// Type returns the name of the value in help texts.
func (*Count) Type() string { return "count" }

// UnmarshalText is Set for configuration files.
func (c *Count) UnmarshalText(text []byte) error { return c.Set(string(text)) }

// MarshalText returns String.
func (c Count) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Bound limits a time. The zero value is unset, which is neither 0 nor infinite: callers supply the
// default. Bound is a pflag.Value, an encoding.TextUnmarshaler, and an encoding.TextMarshaler.
type Bound struct {
	state state
	d     time.Duration
}

// Within allows up to the given duration; 0 allows no time at all.
func Within(d time.Duration) Bound { return Bound{finite, max(d, 0)} }

// Forever allows any time.
func Forever() Bound { return Bound{state: unbounded} }

// IsSet reports whether b is a duration or infinite.
func (b Bound) IsSet() bool { return b.state != unset }

// Or returns b if it is set, otherwise other.
func (b Bound) Or(other Bound) Bound {
	if b.IsSet() {
		return b
	}
	return other
}

// Duration returns the limit. ok is false if b is infinite or unset.
func (b Bound) Duration() (limit time.Duration, ok bool) { return b.d, b.state == finite }

// Plus returns b extended by d, which must not be negative. An infinite or unset bound stays as it
// is, and a sum that no duration can hold is infinite.
func (b Bound) Plus(d time.Duration) Bound {
	switch {
	case b.state != finite:
		return b
	case b.d > math.MaxInt64-d:
		return Forever()
	}
	return Within(b.d + d)
}

// Context returns a context that ends with parent, and b after this call unless b is infinite or
// unset. The caller must call cancel.
func (b Bound) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	if limit, limited := b.Duration(); limited {
		return context.WithTimeout(parent, limit)
	}
	return context.WithCancel(parent)
}

// String returns the text that Set reads: a duration, "infinite", or "" if b is unset.
func (b Bound) String() string {
	switch b.state {
	case finite:
		return b.d.String()
	case unbounded:
		return infinite
	}
	return ""
}

// Set parses a duration or "infinite".
func (b *Bound) Set(text string) error {
	if text == infinite {
		*b = Forever()
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is neither a duration such as 30s (0 means no time at all) nor %q",
			text, infinite)
	}
	*b = Within(d)
	return nil
}

// Type returns the name of the value in help texts.
func (*Bound) Type() string { return "duration" }

// UnmarshalText is Set for configuration files.
func (b *Bound) UnmarshalText(text []byte) error { return b.Set(string(text)) }

// MarshalText returns String.
func (b Bound) MarshalText() ([]byte, error) { return []byte(b.String()), nil }
