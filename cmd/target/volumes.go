package main

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/program"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// openVolumes opens what --volume asks for.
func openVolumes(specs []string, blockSize uint32, log *zap.Logger) (map[string]volume.Volume, error) {
	volumes := make(map[string]volume.Volume, len(specs))
	for _, text := range specs {
		if err := openVolume(volumes, text, blockSize, log); err != nil {
			return nil, errors.Join(err, closeVolumes(context.Background(), volumes))
		}
	}
	for _, v := range volumes {
		info := v.Info()
		log.Info("serving volume", zap.String("volume", info.Name), zap.Uint64("size_bytes", info.Size),
			zap.Uint32("block_size_bytes", info.BlockSize), zap.Stringer("uuid", info.UUID), zap.Bool("read_only", info.ReadOnly))
	}
	return volumes, nil
}

func openVolume(volumes map[string]volume.Volume, text string, blockSize uint32, log *zap.Logger) error {
	spec, err := volume.ParseSpec(text, blockSize)
	if err != nil {
		return program.Usage(fmt.Errorf("--volume %q: %w", text, err))
	}
	if _, taken := volumes[spec.Name]; taken {
		return program.Usagef("--volume %q: there is another volume of that name", text)
	}
	spec.Log = log
	v, err := volume.Open(spec)
	if err != nil {
		return err
	}
	volumes[spec.Name] = v
	return nil
}

func closeVolumes(ctx context.Context, volumes map[string]volume.Volume) error {
	var errs []error
	for _, v := range volumes {
		errs = append(errs, v.Close(ctx))
	}
	return errors.Join(errs...)
}
