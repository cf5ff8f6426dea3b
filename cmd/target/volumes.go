package main

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// openVolumes opens what the configuration describes.
func openVolumes(configs []config.Volume, log *zap.Logger) (map[string]volume.Volume, error) {
	volumes := make(map[string]volume.Volume, len(configs))
	for i := range configs {
		v, err := openVolume(&configs[i], log)
		if err != nil {
			return nil, errors.Join(err, closeVolumes(context.Background(), volumes))
		}
		volumes[configs[i].Name] = v
	}
	for _, v := range volumes {
		info := v.Info()
		log.Info("serving volume", zap.String("volume", info.Name), zap.Uint64("size_bytes", info.Size),
			zap.Uint32("block_size_bytes", info.BlockSize), zap.Stringer("uuid", info.UUID), zap.Bool("read_only", info.ReadOnly))
	}
	return volumes, nil
}

func openVolume(c *config.Volume, log *zap.Logger) (volume.Volume, error) {
	spec, err := volume.ParseSpec(c.Name+"="+c.Backend, c.BlockSize)
	if err != nil {
		return nil, program.Usage(fmt.Errorf("volume %q: %w", c.Name, err))
	}
	spec.Log = log
	return volume.Open(spec)
}

func closeVolumes(ctx context.Context, volumes map[string]volume.Volume) error {
	var errs []error
	for _, v := range volumes {
		errs = append(errs, v.Close(ctx))
	}
	return errors.Join(errs...)
}
