package service

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
)

// openRDMA returns the RDMA provider that is configured.
func openRDMA(c config.RDMA, log *zap.Logger) (rdma.Provider, error) {
	options := providers.RDMAOptions{CRC: c.CRC, Logger: log, Verbs: verbs.Options{
		Device: c.Device, PathMTU: c.PathMTU, TypeOfService: c.TypeOfService, RetryCount: c.RetryCount,
	}}
	if c.GIDIndex != config.AutoGID {
		options.Verbs.GIDIndex = &c.GIDIndex
	}
	p, err := providers.RDMA(c.Provider, options)
	if err != nil {
		return nil, fmt.Errorf("rdma.provider (--rdma-provider): %w", err)
	}
	return p, nil
}
