package main

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheTextIsCopied(t *testing.T) {
	const text = "This is a sample piece of text"
	destination := make([]byte, len(text))
	if err := copyLocally("03:00.0", destination, []byte(text)); err != nil ||
		string(destination) != text {
		t.Errorf("copied %q, error %v", destination, err)
	}
}

func TestADeviceThatIsNotThereIsNamed(t *testing.T) {
	if err := copyLocally("99:00.0", nil, nil); !errors.Is(err, status.NotFound) {
		t.Errorf("got %v", err)
	}
}
