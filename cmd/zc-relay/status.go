package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/ops"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/statusreport"
	"github.com/zc-relay/zc-relay/internal/report"
)

// statusOptions are the flags of "zc-relay status".
type statusOptions struct {
	admin   string
	output  report.Output
	timeout time.Duration
}

// defaultAdminTimeout bounds a request to a daemon on this machine.
const defaultAdminTimeout = 5 * time.Second

func newStatusCommand() *cobra.Command {
	o := statusOptions{output: report.Text}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how a running relay or target stands",
		Long: `status asks a daemon of this machine, through its admin listener, for its channels,
sessions, queues and workers. The JSON document is described by docs/status.schema.json.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.admin, "admin", ops.DefaultAdminAddress, "where the daemon listens for administration, as given to its --admin-listen")
	f.VarP(&o.output, "output", "o", "output format: text or json")
	f.DurationVar(&o.timeout, "timeout", defaultAdminTimeout, "how long to wait for the answer")
	return cmd
}

func (o *statusOptions) run(cmd *cobra.Command) error {
	client, err := ops.NewAdminClient(o.admin)
	if err != nil {
		return program.Usage(fmt.Errorf("--admin: %w", err))
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	content, err := client.Do(ctx, http.MethodGet, "/status", "")
	if err != nil {
		return program.CannotConnect(err)
	}
	var document statusreport.Document
	if err := json.Unmarshal(content, &document); err != nil {
		return fmt.Errorf("read the status of the daemon at %s: %w", o.admin, err)
	}
	if document.Schema != statusreport.Schema {
		return fmt.Errorf("the daemon at %s tells its status as %q, this program reads %q: use the program of the same version", o.admin, document.Schema, statusreport.Schema)
	}
	if o.output == report.JSON {
		_, err := cmd.OutOrStdout().Write(content) // as it came, with fields that this program may not know
		return err
	}
	return document.WriteText(cmd.OutOrStdout())
}
