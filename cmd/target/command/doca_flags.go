// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/argp"
	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// docaFlags holds the flags of the DOCA storage target that the configuration does not have. They
// describe a single volume in memory (doca_storage_target_rdma, DOCA 3.0 to 3.3).
type docaFlags struct {
	device        string
	blockCount    uint32
	binaryContent string

	translated bool
	skip       int64 // bytes of the content's file before the content
}

// defaultBlockCount is the application's default.
const defaultBlockCount = 128

// The names of the flags, and of those that they set.
const (
	deviceFlag        = "device"
	blockCountFlag    = "block-count"
	binaryContentFlag = "binary-content"
	blockSizeFlag     = "block-size"
	listenAddressFlag = "listen-address"
	rdmaDeviceFlag    = "rdma-device"
	volumeFlag        = "volume"
)

// AddFlags adds the flags.
func (d *docaFlags) AddFlags(f *pflag.FlagSet) {
	f.StringVarP(&d.device, deviceFlag, "d", "",
		"as in the DOCA application: the RDMA device, which iwarp does not need; see --rdma-device")
	f.Uint32Var(&d.blockCount, blockCountFlag, defaultBlockCount,
		"as in the DOCA application: blocks of the volume, without --volume")
	f.StringVar(&d.binaryContent, binaryContentFlag, "",
		"as in the DOCA application: file with the volume's first content, without --volume; an .sbc file also has its size")
	argp.Mark(f, deviceFlag, blockCountFlag, binaryContentFlag)
}

// Translate sets the flags of the configuration that the application's flags stand for.
func (d *docaFlags) Translate(f *pflag.FlagSet) error {
	if d.translated {
		return nil
	}
	d.translated = true
	if f.Changed(deviceFlag) && !f.Changed(rdmaDeviceFlag) && usesDevice(f) {
		if err := f.Set(rdmaDeviceFlag, d.device); err != nil {
			return err
		}
	}
	if f.Changed(volumeFlag) || f.Changed("config") {
		for _, name := range []string{blockCountFlag, binaryContentFlag} {
			if f.Changed(name) {
				return fmt.Errorf("--%s describes the only volume of the DOCA application: use it without --config and --volume, or write --volume NAME=memory:SIZE",
					name)
			}
		}
		d.binaryContent = ""
		return nil
	}
	if !f.Changed(deviceFlag) && !f.Changed(blockCountFlag) && !f.Changed(binaryContentFlag) {
		return nil
	}
	return d.translateVolume(f)
}

// usesDevice reports whether a provider that uses RDMA devices can be configured: auto, the
// default, needs none.
func usesDevice(f *pflag.FlagSet) bool {
	return f.Changed("config") || f.Lookup("rdma-provider").Value.String() == "verbs" ||
		os.Getenv(config.TargetPrefix+"RDMA__PROVIDER") != ""
}

func (d *docaFlags) translateVolume(f *pflag.FlagSet) error {
	blockSize, err := size.Parse(f.Lookup(blockSizeFlag).Value.String())
	if err != nil {
		return fmt.Errorf("--%s: %w", blockSizeFlag, err)
	}
	if d.blockCount == 0 {
		return fmt.Errorf("--%s 0 is no volume: write at least 1", blockCountFlag)
	}
	if d.binaryContent != "" {
		if blockSize, err = d.measure(blockSize); err != nil {
			return fmt.Errorf("--%s: %w", binaryContentFlag, err)
		}
	}
	total := uint64(d.blockCount) * uint64(blockSize)
	settings := map[string]string{
		blockSizeFlag: strconv.FormatUint(uint64(blockSize), 10),
		volumeFlag:    fmt.Sprintf("%s=memory:%d", argp.VolumeName, total),
	}
	if !f.Changed(listenAddressFlag) {
		settings[listenAddressFlag] = "0.0.0.0"
	}
	for name, value := range settings {
		err = errors.Join(err, f.Set(name, value))
	}
	return err
}

// The header of an .sbc file has the magic number, the block size, and the number of blocks, all
// big-endian.
const (
	sbcSuffix = ".sbc"
	sbcMagic  = 0xDEADF00D1337FADE
	sbcHeader = 8 + 4 + 4 // bytes
)

// measure checks that the file fits the volume. It returns the block size: an .sbc file overrides
// the geometry.
func (d *docaFlags) measure(blockSize size.Bytes) (size.Bytes, error) {
	file, length, err := openContent(d.binaryContent)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }() // only read
	if filepath.Ext(d.binaryContent) == sbcSuffix {
		var header [sbcHeader]byte
		if _, err := io.ReadFull(file, header[:]); err != nil ||
			binary.BigEndian.Uint64(header[:]) != sbcMagic {
			return 0, fmt.Errorf("%q does not begin like an %s file", d.binaryContent, sbcSuffix)
		}
		blockSize = size.Bytes(binary.BigEndian.Uint32(header[8:]))
		d.blockCount = binary.BigEndian.Uint32(header[12:])
		d.skip, length = sbcHeader, length-sbcHeader
	}
	if want := uint64(d.blockCount) * uint64(blockSize); uint64(length) != want {
		return 0, fmt.Errorf("%q has %d bytes of content, but %d blocks of %d are %d bytes",
			d.binaryContent, length, d.blockCount, blockSize, want)
	}
	return blockSize, nil
}

func openContent(path string) (file *os.File, length int64, err error) {
	about, err := os.Stat(path) // a FIFO would block an open
	if err != nil {
		return nil, 0, err
	}
	if !about.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%q is not a file", path)
	}
	if file, err = os.Open(path); err != nil {
		return nil, 0, err
	}
	return file, about.Size(), nil
}

// fillLength is the length of the requests that fill a volume, in bytes. It is a multiple of every
// block size.
const fillLength = volume.MaxBlockSize

// fill writes the binary content, if there is one, to the volume.
func (d *docaFlags) fill(ctx context.Context, v volume.Volume) (err error) {
	if d.binaryContent == "" {
		return nil
	}
	file, _, err := openContent(d.binaryContent)
	if err != nil {
		return fmt.Errorf("--%s: %w", binaryContentFlag, err)
	}
	defer func() { _ = file.Close() }() // only read
	content := io.NewSectionReader(file, d.skip, int64(v.Info().Size))
	queue, err := v.NewQueue(1)
	if err != nil {
		return fmt.Errorf("fill volume: %w", err)
	}
	defer func() { err = errors.Join(err, queue.Close()) }()
	buffer := make([]byte, fillLength)
	for offset := uint64(0); offset < v.Info().Size; {
		part := buffer[:min(fillLength, v.Info().Size-offset)]
		if _, err := io.ReadFull(content, part); err != nil {
			return fmt.Errorf("--%s: read %q: %w", binaryContentFlag, d.binaryContent, err)
		}
		if err := write(ctx, queue, offset, part); err != nil {
			return fmt.Errorf("fill volume at offset %d: %w", offset, err)
		}
		offset += uint64(len(part))
	}
	return nil
}

// write writes to a volume and waits until that is done. It leaves nothing in flight.
func write(ctx context.Context, queue volume.Queue, offset uint64, data []byte) error {
	request := &volume.Request{Operation: iomsg.OpWrite, Offset: offset,
		Length: uint64(len(data)), Buffer: data}
	if err := queue.Submit(request); err != nil {
		return err
	}
	var completed [1]*volume.Request
	for queue.Poll(completed[:]) == 0 {
		progress.Yield()
	}
	if request.Err != nil {
		return request.Err
	}
	return context.Cause(ctx)
}
