// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
)

func TestOnlyAUnitIsWarnedOfFewDescriptors(t *testing.T) {
	shortage := &config.Shortage{LimitNOFILE: 4096}
	level, next := descriptorAdvice(true, "zc-relay", shortage)
	if level != zap.WarnLevel ||
		!strings.Contains(next, "systemctl edit zc-relay, with [Service] LimitNOFILE=4096") {
		t.Errorf("a unit gets %v, %q", level, next)
	}
	level, next = descriptorAdvice(false, "zc-relay", shortage)
	if level != zap.DebugLevel || !strings.Contains(next, "ulimit -Hn 4096") {
		t.Errorf("a shell gets %v, %q", level, next)
	}
}
