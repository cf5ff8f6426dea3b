//go:build faultinject

package volume

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// FaultBackend wraps another backend and makes it fail. What fails depends on
// the seed and on the order of requests on a queue only.
type FaultBackend struct {
	// EIO is the probability with which a request fails.
	EIO float64
	// Corrupt is the probability with which one bit of what is read or
	// written is inverted.
	Corrupt float64
	// NoSpaceAfter is how many bytes may be written before every further
	// write fails for lack of space, if LimitSpace is set.
	NoSpaceAfter uint64
	LimitSpace   bool
	// Delay is by how much every completion is late.
	Delay time.Duration
	Seed  uint64
	Inner Backend
}

const faultSyntax = "fault:FAULT[,FAULT...]:BACKEND, where FAULT is eio=P, corrupt=P, enospc-after=SIZE, delay=TIME or seed=N"

func parseFault(argument string) (Backend, error) {
	faults, inner, found := strings.Cut(argument, ":")
	if !found {
		return nil, status.Errorf(status.InvalidValue, "no backend is given to make fail: write %s", faultSyntax)
	}
	var b FaultBackend
	for fault := range strings.SplitSeq(faults, ",") {
		key, value, _ := strings.Cut(fault, "=")
		if err := b.set(key, value); err != nil {
			return nil, status.Errorf(status.InvalidValue, "fault %q: %w; write %s", fault, err, faultSyntax)
		}
	}
	var err error
	if b.Inner, err = parseBackend(inner); err != nil {
		return nil, fmt.Errorf("backend of a fault: %w", err)
	}
	return b, nil
}

func (b *FaultBackend) set(key, value string) (err error) {
	switch key {
	case "eio":
		b.EIO, err = parseProbability(value)
	case "corrupt":
		b.Corrupt, err = parseProbability(value)
	case "enospc-after":
		b.LimitSpace = true
		err = (*size.Bytes)(&b.NoSpaceAfter).Set(value)
	case "delay":
		if b.Delay, err = time.ParseDuration(value); err == nil && b.Delay < 0 {
			err = fmt.Errorf("delay is negative")
		}
	case "seed":
		b.Seed, err = strconv.ParseUint(value, 10, 64)
	default:
		err = fmt.Errorf("unknown fault")
	}
	return err
}

func parseProbability(text string) (float64, error) {
	p, err := strconv.ParseFloat(text, 64)
	if err != nil || !(p >= 0 && p <= 1) {
		return 0, fmt.Errorf("%q is not a probability from 0 to 1", text)
	}
	return p, nil
}

// String implements Backend.
func (b FaultBackend) String() string {
	text := fmt.Sprintf("fault:eio=%v,corrupt=%v,delay=%v,seed=%d", b.EIO, b.Corrupt, b.Delay, b.Seed)
	if b.LimitSpace {
		text += ",enospc-after=" + size.Bytes(b.NoSpaceAfter).String()
	}
	return text + ":" + b.Inner.String()
}

func (b FaultBackend) validate(spec *Spec) error { return b.Inner.validate(spec) }

func (b FaultBackend) open(spec *Spec) (Volume, error) {
	inner, err := b.Inner.open(spec)
	if err != nil {
		return nil, err
	}
	return &faultVolume{Volume: inner, backend: b}, nil
}
