// Package status holds the symbolic error codes that cross a wire.
//
// The numbers are those of doca_error_t, as the DOCA storage applications put
// them into IO messages and control messages, so that a code needs no
// translation between the native protocol and the originals.
package status

import "fmt"

// Code is a doca_error_t value. A Code other than Success is an error and can
// be matched with errors.Is.
type Code uint32

// The doca_error_t values (DOCA 2.10 to 3.3).
const (
	Success Code = iota
	Unknown
	NotPermitted
	InUse
	NotSupported
	Again
	InvalidValue
	NoMemory
	Initialization
	TimeOut
	Shutdown
	ConnectionReset
	ConnectionAborted
	ConnectionInProgress
	NotConnected
	NoLock
	NotFound
	IOFailed
	BadState
	UnsupportedVersion
	OperatingSystem
	Driver
	Unexpected
	AlreadyExist
	Full
	Empty
	InProgress
	TooBig
	Authentication
	BadConfig
	Skipped

	codeCount
)

// CodeCount is the number of known codes: every Code below it has a name.
// It sizes arrays that are indexed by Code.
const CodeCount = int(codeCount)

var codeNames = [codeCount]string{
	"SUCCESS", "UNKNOWN", "NOT_PERMITTED", "IN_USE", "NOT_SUPPORTED", "AGAIN",
	"INVALID_VALUE", "NO_MEMORY", "INITIALIZATION", "TIME_OUT", "SHUTDOWN",
	"CONNECTION_RESET", "CONNECTION_ABORTED", "CONNECTION_INPROGRESS",
	"NOT_CONNECTED", "NO_LOCK", "NOT_FOUND", "IO_FAILED", "BAD_STATE",
	"UNSUPPORTED_VERSION", "OPERATING_SYSTEM", "DRIVER", "UNEXPECTED",
	"ALREADY_EXIST", "FULL", "EMPTY", "IN_PROGRESS", "TOO_BIG",
	"AUTHENTICATION", "BAD_CONFIG", "SKIPPED",
}

// String returns the symbolic name, for instance "INVALID_VALUE".
func (c Code) String() string {
	if c < codeCount {
		return codeNames[c]
	}
	return fmt.Sprintf("CODE_%d", uint32(c))
}

// Error makes a Code usable as an error and as a target of errors.Is.
func (c Code) Error() string { return c.String() }

// Known reports whether c is one of the codes above. A peer may send any
// number.
func (c Code) Known() bool { return c < codeCount }
