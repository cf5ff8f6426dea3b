// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// CompletionStatus is the outcome of a work request, as in ibv_wc_status.
type CompletionStatus uint8

// Every status except StatusSuccess means that the connection has ended or is about to.
const (
	StatusSuccess CompletionStatus = iota
	// StatusFlushed: the connection ended before the request was carried out.
	StatusFlushed
	// StatusLocalLength: a message was longer than the posted receive.
	StatusLocalLength
	// StatusLocalProtection: a local segment does not allow the posted use.
	StatusLocalProtection
	// StatusRemoteAccess: the peer denied access to its memory.
	StatusRemoteAccess
	// StatusRemoteOperation: the peer could not carry out the request.
	StatusRemoteOperation
	// StatusRetryExceeded: the peer did not respond in time.
	StatusRetryExceeded
	// StatusFatal: the device or the connection failed for another reason.
	StatusFatal
)

var completionStatusNames = [...]string{
	"SUCCESS", "WR_FLUSH_ERR", "LOC_LEN_ERR", "LOC_PROT_ERR", "REM_ACCESS_ERR",
	"REM_OP_ERR", "RETRY_EXC_ERR", "FATAL_ERR",
}

// String returns the symbolic name that verbs tools print.
func (s CompletionStatus) String() string {
	if int(s) < len(completionStatusNames) {
		return completionStatusNames[s]
	}
	return fmt.Sprintf("WC_STATUS_%d", uint8(s))
}

// Code returns the code under which the outcome is reported to other processes.
func (s CompletionStatus) Code() status.Code {
	switch s {
	case StatusSuccess:
		return status.Success
	case StatusFlushed:
		return status.ConnectionReset
	case StatusRetryExceeded:
		return status.TimeOut
	}
	return status.IOFailed
}
