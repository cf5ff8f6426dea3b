//go:build verbs

package ibv

// #include "shim.h"
import "C"

import "fmt"

// WorkStatus is an ibv_wc_status.
type WorkStatus uint32

// The outcomes of work that are told apart.
const (
	WorkSuccess              WorkStatus = C.IBV_WC_SUCCESS
	WorkLocalLength          WorkStatus = C.IBV_WC_LOC_LEN_ERR
	WorkLocalQueuePair       WorkStatus = C.IBV_WC_LOC_QP_OP_ERR
	WorkLocalProtection      WorkStatus = C.IBV_WC_LOC_PROT_ERR
	WorkFlushed              WorkStatus = C.IBV_WC_WR_FLUSH_ERR
	WorkBadResponse          WorkStatus = C.IBV_WC_BAD_RESP_ERR
	WorkLocalAccess          WorkStatus = C.IBV_WC_LOC_ACCESS_ERR
	WorkRemoteInvalidRequest WorkStatus = C.IBV_WC_REM_INV_REQ_ERR
	WorkRemoteAccess         WorkStatus = C.IBV_WC_REM_ACCESS_ERR
	WorkRemoteOperation      WorkStatus = C.IBV_WC_REM_OP_ERR
	WorkRetryExceeded        WorkStatus = C.IBV_WC_RETRY_EXC_ERR
	WorkRNRRetryExceeded     WorkStatus = C.IBV_WC_RNR_RETRY_EXC_ERR
	WorkRemoteAborted        WorkStatus = C.IBV_WC_REM_ABORT_ERR
	WorkFatal                WorkStatus = C.IBV_WC_FATAL_ERR
	WorkResponseTimeout      WorkStatus = C.IBV_WC_RESP_TIMEOUT_ERR
	WorkGeneral              WorkStatus = C.IBV_WC_GENERAL_ERR
)

// workStatusNames are in the order of enum ibv_wc_status.
var workStatusNames = [...]string{
	"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR",
	"BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
	"RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR",
	"INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR", "TM_ERR", "TM_RNDV_INCOMPLETE",
}

// String returns the symbolic name.
func (s WorkStatus) String() string {
	if int(s) < len(workStatusNames) {
		return "IBV_WC_" + workStatusNames[s]
	}
	return fmt.Sprintf("IBV_WC_%d", uint32(s))
}
