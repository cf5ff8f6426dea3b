// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheTextIsCopied(t *testing.T) {
	const text = "This is a sample piece of text"
	destination := make([]byte, len(text))
	if err := copyLocally(software.New(software.Options{}), "03:00.0", destination, []byte(text)); err != nil ||
		string(destination) != text {
		t.Errorf("copied %q, error %v", destination, err)
	}
}

func TestADeviceThatIsNotThereIsNamed(t *testing.T) {
	err := copyLocally(software.New(software.Options{}), "99:00.0", nil, nil)
	if !errors.Is(err, status.NotFound) {
		t.Errorf("got %v", err)
	}
}

func TestEveryProviderCanBeChosen(t *testing.T) {
	for _, name := range []string{"software", "doca"} {
		if provider, err := providerOf(name); err != nil || provider.Name() != name {
			t.Errorf("%s: %v, error %v", name, provider, err)
		}
	}
	if _, err := providerOf("pigeon"); err == nil {
		t.Error("an unknown provider was accepted")
	}
}
