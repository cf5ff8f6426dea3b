// SPDX-License-Identifier: Apache-2.0

package affinity_test

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestListsAreReadAsTheKernelWritesThem(t *testing.T) {
	for text, want := range map[string][]int{
		"3": {3}, "0-3,8": {0, 1, 2, 3, 8}, "5,1": {5, 1}, " 1 , 2-3": {1, 2, 3}, "7-7": {7},
		"1023": {1023},
	} {
		got, err := affinity.ParseList(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("ParseList(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestBadListsAreRefusedWithTheReason(t *testing.T) {
	for text, want := range map[string]string{
		"": `"" is not a CPU number`, "a": `"a" is not`, "-1": `"" is not`, "1-": `"" is not`,
		"3-1": "ends before it begins", "1,1": "CPU 1 is named twice",
		"0-2,1": "CPU 1 is named twice",
		"1024":  "from 0 to 1023", "99999999999": "from 0 to 1023", "1,,2": `"" is not`,
		"0x1": `"0x1" is not`, "+1": `"+1" is not`,
	} {
		got, err := affinity.ParseList(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseList(%q) = %v, %v, want an error with %q", text, got, err, want)
		}
	}
}

func TestFormattedListsReadBackAsTheSameSet(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		cpus := rapid.SliceOfNDistinct(rapid.IntRange(0, 1023), 1, 80, rapid.ID[int]).Draw(t,
			"cpus")
		text := affinity.FormatList(cpus)
		got, err := affinity.ParseList(text)
		slices.Sort(cpus)
		if err != nil || !slices.Equal(got, cpus) {
			t.Fatalf("%v became %q became %v, %v", cpus, text, got, err)
		}
	})
}

func TestListsJoinNeighbours(t *testing.T) {
	if got := affinity.FormatList([]int{8, 2, 0, 1, 3, 3, 10}); got != "0-3,8,10" {
		t.Errorf("got %q", got)
	}
	if got := affinity.FormatList(nil); got != "" {
		t.Errorf("the empty list is %q", got)
	}
}

func TestPinnedThreadRunsOnItsCPUAlone(t *testing.T) {
	allowed, err := affinity.Allowed()
	if err != nil || len(allowed) == 0 {
		t.Fatalf("allowed CPUs are %v, %v", allowed, err)
	}
	last := allowed[len(allowed)-1]
	result := make(chan error, 1)
	var set unix.CPUSet
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here
		if err := affinity.Pin(last); err != nil {
			result <- err
			return
		}
		result <- unix.SchedGetaffinity(0, &set)
	}()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if set.Count() != 1 || !set.IsSet(last) {
		t.Errorf("thread may run on %d CPUs, CPU %d included: %v", set.Count(), last,
			set.IsSet(last))
	}
	if again, _ := affinity.Allowed(); !slices.Equal(again, allowed) {
		t.Errorf("pinning a thread changed the allowed set to %v", again)
	}
}

func TestForbiddenCPUIsNamedTogetherWithTheAllowedOnes(t *testing.T) {
	allowed, err := affinity.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	forbidden := allowed[len(allowed)-1] + 1
	err = affinity.Pin(forbidden)
	if !errors.Is(err, status.InvalidValue) {
		t.Fatalf("Pin(%d) = %v", forbidden, err)
	}
	if want := "is not in the allowed set " +
		affinity.FormatList(allowed); !strings.Contains(err.Error(), want) {
		t.Errorf("%q does not contain %q", err, want)
	}
	if err := affinity.Pin(-1); !errors.Is(err, status.InvalidValue) {
		t.Errorf("Pin(-1) = %v", err)
	}
}

func TestDescriptionTellsPinnedFromUnpinned(t *testing.T) {
	if got := affinity.Describe([]int{2, 3}); got != "pinned to CPUs 2-3" {
		t.Errorf("got %q", got)
	}
	for _, cpus := range [][]int{nil, {-1, -1}} {
		if got := affinity.Describe(cpus); !strings.HasPrefix(got, "not pinned, allowed on CPUs ") {
			t.Errorf("Describe(%v) = %q", cpus, got)
		}
	}
}

func FuzzParseList(f *testing.F) {
	for _, seed := range []string{"3", "0-3,8", "", "1-", "-", ",", "9999-1", "0-1023"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		cpus, err := affinity.ParseList(text)
		if (err == nil) == (cpus == nil) {
			t.Fatalf("ParseList(%q) = %v, %v: exactly one must be set", text, cpus, err)
		}
	})
}
