package main

import (
	"fmt"
	"strings"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/bench"
	"github.com/zc-relay/zc-relay/internal/benchsuite"
)

// strategy is an execution strategy of the DOCA storage applications since
// 3.0. It is a flag value.
type strategy string

const (
	readThroughput    strategy = "read_throughput_test"
	writeThroughput   strategy = "write_throughput_test"
	readWriteValidity strategy = "read_write_data_validity_test"
	readOnlyValidity  strategy = "read_only_data_validity_test"
)

var strategies = []strategy{readThroughput, writeThroughput, readWriteValidity, readOnlyValidity}

// String implements pflag.Value.
func (s *strategy) String() string { return string(*s) }

// Set implements pflag.Value.
func (s *strategy) Set(text string) error {
	for _, known := range strategies {
		if text == string(known) {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("execution strategy %q is none of %s", text, strategyNames(", "))
}

// Type implements pflag.Value.
func (s *strategy) Type() string { return "strategy" }

func strategyNames(separator string) string {
	names := make([]string, len(strategies))
	for i, s := range strategies {
		names[i] = string(s)
	}
	return strings.Join(names, separator)
}

// apply makes the strategy's pattern, which is sequential as it is there.
func (s strategy) apply(p *bench.Parameters) {
	p.Pattern = benchsuite.Read
	if s == writeThroughput || s == readWriteValidity {
		p.Pattern = benchsuite.Write
	}
	if s == readWriteValidity || s == readOnlyValidity {
		p.Validate = true
	}
}
