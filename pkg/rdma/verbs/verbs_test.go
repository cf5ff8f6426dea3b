// SPDX-License-Identifier: Apache-2.0

package verbs_test

import (
	"errors"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestInvalidOptionsAreRejected(t *testing.T) {
	negative := -1
	for name, o := range map[string]verbs.Options{
		"path MTU":             {PathMTU: 1500},
		"GID index":            {GIDIndex: &negative},
		"retry count":          {RetryCount: 8},
		"negative retry count": {RetryCount: -1},
		"RNR retry count":      {RNRRetryCount: 8},
		"acknowledgement":      {AckTimeout: 3 * time.Hour},
		"negative timeout":     {AckTimeout: -1},
	} {
		if _, err := verbs.New(o); !errors.Is(err, status.InvalidValue) {
			t.Errorf("invalid %s: New returned %v, want %v", name, err, status.InvalidValue)
		}
	}
}

func TestNewReturnsTheProviderOrErrAbsent(t *testing.T) {
	p, err := verbs.New(verbs.Options{PathMTU: 1024, RetryCount: 7, AckTimeout: time.Second})
	switch {
	case err == nil && p.Name() != verbs.ProviderName:
		t.Errorf("provider name is %q, want %q", p.Name(), verbs.ProviderName)
	case err != nil && (!errors.Is(err, verbs.ErrAbsent) || !errors.Is(err, status.NotSupported)):
		t.Error(err)
	}
}
