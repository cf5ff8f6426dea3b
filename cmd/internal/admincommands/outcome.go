// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/admin"
)

// outcomeSchema names the format of Outcome. Fields may be added within a version.
const outcomeSchema = "zc-relay.administration/1"

// The operations of commands that change a daemon, and of those that only ask it, which print other
// documents unless they fail.
const (
	OperationDrain        = "drain"
	OperationResume       = "resume"
	operationReload       = "reload"
	operationLogLevel     = "log_level"
	operationEndSession   = "end_session"
	operationRemoveVolume = "remove_volume"
	operationPreempt      = "preempt_holder"
	operationTrace        = "trace"
	operationStatus       = "status"
	operationSessions     = "list_sessions"
	operationVolumes      = "list_volumes"
	operationAddVolume    = "add_volume"
	operationResizeVolume = "resize_volume"

	operationChannels      = "list_channels"
	operationAddChannel    = "add_channel"
	operationRemoveChannel = "remove_channel"
	operationMoveChannel   = "move_channel"
	operationLimitChannel  = "limit_channel"
)

// Outcome is what a command that changes a running daemon prints as JSON, and what any command that
// talks to a daemon prints if it fails. Only the field of its operation is set.
type Outcome struct {
	Schema    string `json:"schema"`
	Operation string `json:"operation"`
	// Drain is the state of the daemon at the end of the command, also of one that has failed.
	Drain  *admin.DrainState `json:"drain,omitempty"`
	Reload *admin.Reload     `json:"reload,omitempty"`
	// LogLevel is the lowest severity that the daemon logs.
	LogLevel string `json:"log_level,omitempty"`
	// Session is the number of the session that ends.
	Session uint64 `json:"session,omitempty"`
	// Volume is the name of the volume that was removed, or that Holder has lost.
	Volume string `json:"volume,omitempty"`
	Holder string `json:"holder_id,omitempty"`
	// Channel is the operand of the channel that was removed.
	Channel string          `json:"channel,omitempty"`
	Trace   *Trace          `json:"trace,omitempty"`
	Error   *report.Failure `json:"error,omitempty"`
}

// Trace describes a file of traced IOs.
type Trace struct {
	File string `json:"file"`
	IOs  int    `json:"ios"`
}

// Print prints the outcome of a command as JSON, even if it has failed. As text it prints sentence,
// unless that is "" or the command has failed. It returns failure in preference to its own error.
func (o *Outcome) Print(cmd *cobra.Command, output report.Output, sentence string,
	failure error) error {
	o.Schema = outcomeSchema
	var err error
	switch {
	case output == report.JSON:
		o.Error = program.FailureOf(failure)
		err = report.WriteJSON(cmd.OutOrStdout(), o)
	case sentence != "" && failure == nil:
		_, err = fmt.Fprintln(cmd.OutOrStdout(), sentence)
	}
	if failure != nil {
		return failure
	}
	return err
}
