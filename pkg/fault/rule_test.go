// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRulesAreParsedAndPrinted(t *testing.T) {
	for text, want := range map[string]fault.Rule{
		"rdma:post_send:every=1000:error=IO_FAILED": {Seam: fault.RDMA, Operation: "post_send",
			Every: 1000, Action: fault.Error, Code: status.IOFailed},
		"volume:flush:nth=2:error=ENOSPC": {Seam: fault.Volume, Operation: "flush", Nth: 2,
			Action: fault.Error, Code: status.IOFailed, Cause: status.Cause(syscall.ENOSPC)},
		"volume:write:p=0.01:seed=7:delay=5ms": {Seam: fault.Volume, Operation: "write",
			Probability: 0.01, Seed: 7, Action: fault.Delay, Delay: 5 * time.Millisecond},
		"comch:producer.send:while=trouble:after=3:freeze": {Seam: fault.Comch,
			Operation: "producer.send", Switch: "trouble", After: 3, Action: fault.Freeze},
		"control:receive:kind=open_volume:nth=1:drop": {Seam: fault.Control, Operation: "receive",
			Kind: "open_volume", Nth: 1, Action: fault.Drop},
		"volume:read:range=1MiB+4KiB:error=IO_FAILED": {Seam: fault.Volume, Operation: "read",
			Range: fault.Range{Offset: 1 << 20, Length: 4096}, Action: fault.Error,
			Code: status.IOFailed},
		"volume:any:corrupt":   {Seam: fault.Volume, Operation: fault.Any, Action: fault.Corrupt},
		"control:any:trace":    {Seam: fault.Control, Operation: fault.Any, Action: fault.Trace},
		"comch:send:duplicate": {Seam: fault.Comch, Operation: "send", Action: fault.Duplicate},
	} {
		rule, err := fault.Parse(text)
		if err != nil || rule != want {
			t.Errorf("%s is %+v, %v", text, rule, err)
		}
		if rule.String() != text {
			t.Errorf("%s is printed as %v", text, rule)
		}
	}
}

// badRules holds the reason why each rule is rejected.
var badRules = map[string]string{
	"":                                                         "needs a seam, an operation, and an action",
	"rdma:post_send":                                           "needs a seam, an operation, and an action",
	"disk:write:trace":                                         "the seams are rdma, comch, volume, control",
	"rdma:write:trace":                                         "the operations of rdma are open, listen,",
	"volume:read:drop":                                         "the actions of volume:read are trace, delay, error",
	"rdma:any:duplicate":                                       "the actions of rdma:any are trace, delay",
	"volume:write:every=10":                                    "it has no action",
	"volume:write:trace:freeze":                                "this one has trace already",
	"volume:write:trace:trace":                                 `"trace" is there twice`,
	"volume:write:every=0:trace":                               "a number above 0",
	"volume:write:nth=-1:trace":                                "a number above 0",
	"volume:write:every=1:every=2:trace":                       `"every" is there twice`,
	"volume:write:p=2:trace":                                   "above 0 and at most 1",
	"volume:write:p=0:trace":                                   "above 0 and at most 1",
	"volume:write:p=NaN:trace":                                 "above 0 and at most 1",
	"volume:write:seed=x:trace":                                "a seed is a number",
	"volume:write:while=:trace":                                "a name has 1 to 32",
	"volume:write:while=A B:trace":                             "a name has 1 to 32",
	"volume:write:kind=stop:trace":                             "only messages of the seam control have a kind",
	"volume:write:range=1MiB:trace":                            "a range is an offset and a length",
	"volume:write:range=0+0:trace":                             "a range is an offset and a length",
	"volume:write:range=-1+2:trace":                            "a range is an offset and a length",
	"volume:write:range=18446744073709551615+1:trace":          "a range is an offset and a length",
	"comch:send:range=0+1:trace":                               "only operations of the seam volume have a range",
	"volume:write:delay":                                       "invalid duration",
	"volume:write:delay=5":                                     "missing unit",
	"volume:write:delay=-1s":                                   "above 0 and at most 1h",
	"volume:write:delay=2h":                                    "above 0 and at most 1h",
	"volume:write:error":                                       "neither of an error code",
	"volume:write:error=SUCCESS":                               "neither of an error code",
	"volume:write:error=EVERYTHING":                            "neither of an error code",
	"volume:write:error=truncated":                             "neither of an error code",
	"volume:write:freeze=1s":                                   "the action has no value",
	"volume:write:explode":                                     "neither a condition nor an action",
	"volume:write:":                                            "neither a condition nor an action",
	"volume:write:" + strings.Repeat("x", fault.MaxRuleLength): "the limit is 256",
}

func TestBadRulesAreRejectedWithTheReason(t *testing.T) {
	for text, want := range badRules {
		if _, err := fault.Parse(text); !errors.Is(err, status.InvalidValue) ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fault.Syntax) {
			t.Errorf("Parse(%q) returned %v, want an error with %q", text, err, want)
		}
	}
}

func TestAnInjectorRejectsRulesThatNoTextDescribes(t *testing.T) {
	write := fault.Rule{Seam: fault.Volume, Operation: "write", Action: fault.Trace}
	for name, change := range map[string]func(*fault.Rule){
		"no action":             func(r *fault.Rule) { r.Action = fault.None },
		"unknown action":        func(r *fault.Rule) { r.Action = 99 },
		"a delay of a trace":    func(r *fault.Rule) { r.Delay = time.Second },
		"a code of a trace":     func(r *fault.Rule) { r.Code = status.IOFailed },
		"an error without code": func(r *fault.Rule) { r.Action = fault.Error },
		"a cause of a trace":    func(r *fault.Rule) { r.Cause = status.Cause(syscall.EIO) },
		"a cause without error number": func(r *fault.Rule) {
			r.Action, r.Code, r.Cause = fault.Error, status.IOFailed, status.CauseTruncated
		},
		"a range without bytes":  func(r *fault.Rule) { r.Range.Offset = 1 },
		"a range past the end":   func(r *fault.Rule) { r.Range = fault.Range{Offset: 2, Length: 1<<64 - 1} },
		"a negative probability": func(r *fault.Rule) { r.Probability = -1 },
	} {
		rule := write
		change(&rule)
		if _, err := fault.New([]fault.Rule{rule}, nil); !errors.Is(err, status.InvalidValue) {
			t.Errorf("%s: New returned %v", name, err)
		}
	}
	many := make([]fault.Rule, fault.MaxRules+1)
	for i := range many {
		many[i] = write
	}
	if _, err := fault.New(many, nil); !errors.Is(err, status.InvalidValue) {
		t.Errorf("too many rules: New returned %v", err)
	}
	if _, err := fault.New(many[1:], nil); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for text := range badRules {
		f.Add(text)
	}
	for _, text := range []string{
		"rdma:post_send:every=1000:error=IO_FAILED", "volume:write:p=0.01:seed=7:delay=5ms",
		"comch:producer.send:while=trouble:freeze", "control:any:kind=stop:nth=1:after=0:drop",
		"volume:any:error=ENOSPC", "volume:write:range=1MiB+64KiB:p=0.5:error=EIO", "volume:any:p=1e-300:corrupt", "volume:any:trace:p=.5:delay=1h",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rule, err := fault.Parse(text)
		if err != nil {
			if rule != (fault.Rule{}) || !errors.Is(err, status.InvalidValue) {
				t.Fatalf("Parse(%q) returned %+v, %v", text, rule, err)
			}
			return
		}
		again, err := fault.Parse(rule.String())
		if err != nil || again != rule {
			t.Fatalf("Parse(%q) returned %+v, printed as %v, which is %+v, %v", text, rule, rule,
				again, err)
		}
		injector, err := fault.New([]fault.Rule{rule}, nil)
		if err != nil || !injector.Has(rule.Seam) {
			t.Fatalf("the rule %v cannot be used: %v", rule, err)
		}
	})
}
