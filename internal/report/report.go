// Package report is what the documents that programs print as their results
// have in common.
package report

import (
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Failure is why a run failed.
type Failure struct {
	// Code is the symbolic name of a status code.
	Code string `json:"code"`
	// Phase is what the program was doing.
	Phase   string `json:"phase"`
	Message string `json:"message"`
}

// FailureOf describes err, nil if that is nil. message is its text.
func FailureOf(phase string, err error, message string) *Failure {
	if err == nil {
		return nil
	}
	return &Failure{Code: status.CodeOf(err).String(), Phase: phase, Message: message}
}
