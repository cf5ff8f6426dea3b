package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/report"
)

// printable is a result that can be printed.
type printable interface{ WriteText(w io.Writer) error }

// printed prints a result and returns failure, if any. JSON is printed in any
// case, so that a script always gets a document; text only if there is
// something to tell beyond the failure, which is explained on standard error.
func printed(cmd *cobra.Command, output report.Output, d printable, worthText bool, failure error) error {
	var err error
	switch {
	case output == report.JSON:
		err = report.WriteJSON(cmd.OutOrStdout(), d)
	case worthText:
		err = d.WriteText(cmd.OutOrStdout())
	}
	if failure != nil {
		return failure
	}
	return err
}

// sentence is the text of an error, "" if there is none.
func sentence(err error) string {
	if err == nil {
		return ""
	}
	return program.Sentence(err)
}

// The phases of a run, as documents name them.
const (
	phasePrepare = "prepare" // nothing has been asked of a relay
	phaseConnect = "connect"
	phaseRun     = "run"
	phaseClose   = "close"
)

// phased is an error and what the program was doing.
type phased struct {
	phase string
	err   error
}

func (p *phased) Error() string { return p.err.Error() }
func (p *phased) Unwrap() error { return p.err }

func during(phase string, err error) error {
	if err == nil {
		return nil
	}
	return &phased{phase: phase, err: err}
}

// failureOf describes err for a document.
func failureOf(err error) *report.Failure {
	phase := phaseRun
	var p *phased
	if errors.As(err, &p) {
		phase = p.phase
	}
	return report.FailureOf(phase, err, sentence(err))
}
