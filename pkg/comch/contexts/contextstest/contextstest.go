// SPDX-License-Identifier: Apache-2.0

// Package contextstest is the conformance suite for package contexts, over each provider of package
// comch. It follows the DOCA Comch guide sentence by sentence; docs/dev/comch-conformance.md names
// the tests of each sentence.
package contextstest

import (
	"context"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/memory"
)

// suite is one run of the suite.
type suite struct{ *comchtest.Suite }

// Run runs the suite as subtests of t, as comchtest.Run runs that of the provider.
func Run(t *testing.T, config comchtest.Config) {
	t.Helper()
	var groups []comchtest.Group
	for _, group := range []struct {
		name string
		run  func(*suite, *testing.T)
	}{
		{"ContextStates", (*suite).testContextStates},
		{"ContextConfiguration", (*suite).testContextConfiguration},
		{"ContextMessages", (*suite).testContextMessages},
		{"ContextConnections", (*suite).testContextConnections},
		{"ContextFastPath", (*suite).testContextFastPath},
		{"ContextEnding", (*suite).testContextEnding},
		{"MsgQ", (*suite).testMsgQ},
		{"ContextThreads", (*suite).testContextThreads},
	} {
		groups = append(groups, comchtest.Group{Name: group.name,
			Run: func(s *comchtest.Suite, t *testing.T) { group.run(&suite{s}, t) }})
	}
	comchtest.RunGroups(t, config, groups)
}

// testContext returns a context that bounds a test.
func testContext(t *testing.T) context.Context {
	t.Helper()
	return testkit.Context(t)
}

// The size of a consumer in most tests.
const (
	receives   = 16
	bufferSize = 64 // bytes of one posted buffer
	memorySize = receives * bufferSize
)

const readWrite = memory.PCIRead | memory.PCIWrite

var (
	wantCode = comchtest.WantCode
	closeAll = comchtest.CloseAll
)
