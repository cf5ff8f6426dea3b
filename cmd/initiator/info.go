package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/client"
)

// infoSchema names the format of info's document.
const infoSchema = "zc-relay.info/1"

// infoReport is everything that info prints.
type infoReport struct {
	Schema     string              `json:"schema"`
	Connection document.Connection `json:"connection"`
	Volume     *document.Volume    `json:"volume"`
	// Capabilities lists the operations beyond read, write and flush.
	Capabilities *capabilities   `json:"capabilities"`
	Error        *report.Failure `json:"error,omitempty"`
}

type capabilities struct {
	Trim        bool `json:"trim"`
	WriteZeroes bool `json:"write_zeroes"`
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

// fill opens the volume and describes it.
func (r *infoReport) fill(cmd *cobra.Command, connection *connectionFlags) error {
	v, err := connection.openVolume(cmd.Context(), client.Config{SyncDepth: 1})
	if err != nil {
		return during(phaseConnect, err)
	}
	info := v.Info()
	r.Volume = document.VolumeOf(&info)
	r.Capabilities = &capabilities{Trim: info.CanTrim, WriteZeroes: info.CanWriteZeroes}
	return during(phaseClose, v.Close(cmd.Context()))
}

// WriteText prints the report for people.
func (r *infoReport) WriteText(w io.Writer) error {
	t := &document.Table{}
	t.Connection(&r.Connection, r.Volume)
	t.Row("capabilities", "read, write, flush%s%s", optional(", trim", r.Capabilities.Trim),
		optional(", write zeroes", r.Capabilities.WriteZeroes))
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
