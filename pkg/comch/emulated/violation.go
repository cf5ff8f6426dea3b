package emulated

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// errViolation is a breach of the protocol by the peer. It ends the
// connection.
var errViolation = errors.New("peer broke the protocol")

// violation says which rule was broken by which value.
func violation(format string, args ...any) error {
	return status.Errorf(status.Unexpected, "%w: %s", errViolation, fmt.Sprintf(format, args...))
}

func isViolation(err error) bool { return errors.Is(err, errViolation) }
