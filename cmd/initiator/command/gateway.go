// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/adminserver"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/webconfig"
	"github.com/zc-relay/zc-relay/internal/endpoint"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/blockio"
)

// What the front ends of the gateway have in common: "initiator nbd" and "initiator ublk".

// bufferFlags determine the memory for data.
type bufferFlags struct{ size, memory size.Bytes }

// Bounds of a buffer.
const (
	defaultGatewayBuffer = 256 * size.KiB
	leastGatewayBuffer   = 128 * size.KiB
)

func (b *bufferFlags) add(f *pflag.FlagSet, memory size.Bytes, memoryUsage, bufferUsage string) {
	b.size, b.memory = defaultGatewayBuffer, memory
	f.Var(&b.memory, "memory", memoryUsage)
	f.Var(&b.size, "buffer-size", bufferUsage)
}

func (b *bufferFlags) check() error {
	if b.size < leastGatewayBuffer || b.size&(b.size-1) != 0 {
		return program.Usagef("--buffer-size %v is not a power of two of at least %v", b.size,
			size.Bytes(leastGatewayBuffer))
	}
	if b.memory < 2*b.size || b.memory%b.size != 0 || b.memory > size.GiB {
		return program.Usagef(
			"--memory %v is not a multiple of --buffer-size %v, from two of them to 1GiB", b.memory,
			b.size)
	}
	return nil
}

// operationsFlags determine the listener for metrics and status.
type operationsFlags struct {
	address   string
	webConfig string
	// hosts are further names of this machine that requests for the status may be for.
	hosts []string
}

func (o *operationsFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.address, "metrics-listen", "",
		"serve metrics, status and health on this `HOST:PORT`")
	f.StringVar(&o.webConfig, "web-config-file", "",
		"web configuration `file` of the Prometheus exporter toolkit, with TLS and users of --metrics-listen")
	f.StringArrayVar(&o.hosts, "allowed-host", nil,
		"further `name` of this machine that requests for the status may be for; repeatable")
}

func (o *operationsFlags) check() error {
	if o.webConfig != "" && o.address == "" {
		return program.Usagef("--web-config-file has no effect without --metrics-listen")
	}
	if len(o.hosts) > 0 && o.address == "" {
		return program.Usagef("--allowed-host has no effect without --metrics-listen")
	}
	if err := endpoint.CheckHost(o.address); err != nil {
		return program.Usagef("--metrics-listen %q: %w", o.address, err)
	}
	return nil
}

// requestCount is how many requests of a front end had the same outcome.
type requestCount struct {
	Command string `json:"command"`
	Error   string `json:"error"`
	Count   uint64 `json:"count"`
}

func requestCountsOf(counts []blockio.RequestCount) []requestCount {
	requests := []requestCount{} // in JSON, no count is an empty list
	for _, r := range counts {
		requests = append(requests, requestCount{
			Command: r.Command.String(), Error: r.Error.Error(), Count: r.Count})
	}
	return requests
}

// listen starts the listener, nil if there is none.
func (o *operationsFlags) listen(report func() any, collector prometheus.Collector,
	log *zap.Logger) (*adminserver.Server, error) {
	if o.address == "" {
		return nil, nil
	}
	var web *webconfig.File
	if o.webConfig != "" {
		var err error
		if web, err = webconfig.Load(o.webConfig, log); err != nil {
			return nil, program.Usage(fmt.Errorf("--web-config-file: %w", err))
		}
	}
	operations, err := adminserver.Listen(adminserver.ServerConfig{Address: o.address,
		Status: report, Web: web, Hosts: o.hosts, Log: log})
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	log.Info("serving metrics and health", zap.Stringer("address", operations.Address()))
	return operations, operations.Register(collector)
}
