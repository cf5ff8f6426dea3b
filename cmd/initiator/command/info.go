// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/internal/report"
)

// infoSchema names the format of info's document.
const infoSchema = "zc-relay.info/1"

// infoReport is everything that info prints.
type infoReport struct {
	Schema     string              `json:"schema"`
	Connection document.Connection `json:"connection"`
	Volume     *document.Volume    `json:"volume"`
	// Capabilities lists the operations beyond read and flush.
	Capabilities *capabilities   `json:"capabilities"`
	Use          *use            `json:"use"`
	Error        *report.Failure `json:"error,omitempty"`
}

// use tells who uses the volume, and who may.
type use struct {
	// Exclusive means that only one client at a time may open the volume for writing.
	Exclusive bool `json:"exclusive"`
	// Sessions is the number of sessions that have the volume open.
	Sessions int `json:"sessions"`
	// Holder is the client that has the volume open exclusively, and HolderID names it for
	// --preempt.
	Holder   string `json:"holder,omitempty"`
	HolderID string `json:"holder_id,omitempty"`
}

// String returns the text for people.
func (u *use) String() string {
	text := fmt.Sprintf("%d sessions", u.Sessions)
	if u.Sessions == 1 {
		text = "1 session"
	}
	if u.Holder != "" {
		text += ", exclusively by " + u.Holder
	}
	if u.HolderID != "" {
		text += " (holder " + u.HolderID + ")"
	}
	if u.Exclusive {
		text += "; one writer at a time"
	}
	return text
}

type capabilities struct {
	Write       bool `json:"write"`
	Trim        bool `json:"trim"`
	WriteZeroes bool `json:"write_zeroes"`
	Extents     bool `json:"extents"`
}

func newInfoCommand(connection *connectionFlags) *cobra.Command {
	output := report.Text
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Describe the volume behind a channel",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := infoReport{Schema: infoSchema, Connection: connection.report()}
			err := r.fill(cmd, connection)
			r.Error = failureOf(err)
			return printResult(cmd, output, &r, r.Volume != nil, err)
		},
	}
	output.AddFlag(cmd.Flags())
	return cmd
}

// fill describes the volume. It does not open it, so that it works while another client has the
// volume exclusively.
func (r *infoReport) fill(cmd *cobra.Command, connection *connectionFlags) error {
	info, err := connection.describeVolume(cmd.Context())
	if err != nil {
		return inPhase(phaseConnect, err)
	}
	r.Volume = document.VolumeOf(&info)
	r.Capabilities = &capabilities{Write: !info.ReadOnly, Trim: info.CanTrim,
		WriteZeroes: info.CanWriteZeroes, Extents: info.CanReportExtents}
	r.Use = &use{Exclusive: info.Exclusive, Sessions: info.Sessions, Holder: info.Holder,
		HolderID: info.HolderID}
	return nil
}

// WriteText prints the report for people.
func (r *infoReport) WriteText(w io.Writer) error {
	t := &document.Table{}
	t.Connection(&r.Connection, r.Volume)
	t.Row("protection", "%s", r.Volume.Protection())
	t.Row("capabilities", "read, flush%s%s%s%s", optional(", write", r.Capabilities.Write),
		optional(", trim", r.Capabilities.Trim),
		optional(", write zeroes", r.Capabilities.WriteZeroes),
		optional(", extents", r.Capabilities.Extents))
	t.Row("open", "%s", r.Use)
	t.Failure(r.Error)
	_, err := io.WriteString(w, t.String())
	return err
}

func optional(text string, offered bool) string {
	if offered {
		return text
	}
	return ""
}
