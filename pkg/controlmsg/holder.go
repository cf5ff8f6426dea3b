// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// HolderID names an owner's use of a volume: from the session with which the owner opens the volume
// to the end of its last one there. A target picks it at random, so that nobody can name a holder
// without having been told of it. It is never 0.
type HolderID uint64

// holderIDDigits is the length of a holder ID as text.
const holderIDDigits = 16

// NewHolderID returns a random ID.
func NewHolderID() HolderID {
	for {
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails
		if id := HolderID(binary.BigEndian.Uint64(random[:])); id != 0 {
			return id
		}
	}
}

// String returns 16 hexadecimal digits, or "" for 0.
func (id HolderID) String() string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%0*x", holderIDDigits, uint64(id))
}

// ParseHolderID returns the ID whose String is text. It fails with status.InvalidValue for anything
// else.
func ParseHolderID(text string) (HolderID, error) {
	number, err := strconv.ParseUint(text, 16, 64)
	if id := HolderID(number); err == nil && id != 0 && id.String() == text {
		return id, nil
	}
	return 0, status.Errorf(status.InvalidValue, "holder %.32q is not an ID of %d hexadecimal digits "+
		"as \"initiator info\" and the lists of the target show it", text, holderIDDigits)
}
