// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/memory"
)

// newMemories returns the memories of a volume that has none yet.
func newMemories(t *testing.T) *memories {
	return &memories{terms: &terms{config: Config{Logger: zap.NewNop()}},
		background: newBackground(t.Context(), zap.NewNop()), onEvidence: func() {}}
}

// What a volume does in the background ends with it: nobody uses its queues any more.
func TestAClosedVolumeForgetsNoChanges(t *testing.T) {
	for name, closes := range map[string]bool{"open": false, "closed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				region, err := memory.Alloc("data", 4096)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = region.Close() }()
				loan, err := region.Lend()
				if err != nil {
					t.Fatal(err)
				}
				if err := loan.Region().Close(); err != nil { // the relay has died
					t.Fatal(err)
				}
				m := newMemories(t)
				defer m.background.cancel()
				ended := &lending{leases: time.Second, loan: loan}
				m.settle(ended, false)
				if closes {
					m.background.stop()
				}
				time.Sleep(time.Minute)
				if forgotten := ended.evidence.Load() == harmless; forgotten == closes {
					t.Errorf("changes are forgotten: %t", forgotten)
				}
			})
		})
	}
}

// lent returns data memory in quarantine.
func lent(t *testing.T) *dataMemory {
	t.Helper()
	region, err := memory.Alloc("test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	loan, err := region.Lend()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(loan.Region().Close(), region.Close()) })
	return &dataMemory{Region: region, quarantine: loan}
}

func TestMemoryInQuarantineIsFreedWhenNobodyUsesIt(t *testing.T) {
	m, d := newMemories(t), lent(t)
	expect := func(when string, want bool) {
		t.Helper()
		if got := m.isUnused(d); got != want {
			t.Errorf("%s, the memory is unused: %v", when, got)
		}
	}
	d.users.Store(1)
	expect("while a queue and the relay use it", false)
	d.users.Store(0)
	expect("while the relay uses it", false)
	if err := d.quarantine.Region().Close(); err != nil {
		t.Fatal(err)
	}
	expect("when nobody uses it", true)
	d.users.Store(1)
	expect("while a queue uses it", false)
}

func TestALoanThatCannotBeCheckedHasNotEnded(t *testing.T) {
	m, d := newMemories(t), lent(t)
	if err := d.CloseDescriptor(); err != nil {
		t.Fatal(err)
	}
	if m.isReturned(d.quarantine) {
		t.Error("a loan that cannot be checked counts as ended")
	}
}
