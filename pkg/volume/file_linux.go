package volume

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// FileBackend keeps a volume in a regular file or on a block device. The
// volume is locked against being opened twice.
type FileBackend struct {
	Path string
	// Size is the size in bytes at which a file that does not exist, or is
	// empty, is created. An existing file must have it; 0 takes a file as it
	// is, without what exceeds a multiple of the block size.
	Size     uint64
	ReadOnly bool
	// Direct goes past the page cache (O_DIRECT): for devices that are faster
	// than copying, or content that is not worth memory. Writes are still only
	// durable after a flush.
	Direct bool
}

func parseFile(argument string) (Backend, error) {
	path, options, more := strings.Cut(argument, ",")
	b := FileBackend{Path: path}
	for more {
		var option string
		option, options, more = strings.Cut(options, ",")
		if err := b.parseOption(option); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *FileBackend) parseOption(option string) error {
	switch option {
	case "readonly":
		b.ReadOnly = true
		return nil
	case "direct":
		b.Direct = true
		return nil
	}
	text, isSize := strings.CutPrefix(option, "size=")
	if !isSize {
		return status.Errorf(status.InvalidValue, "file:%s: unknown option %q: the options are size=SIZE, readonly and direct (a path cannot contain a comma)", b.Path, option)
	}
	bytes, err := size.Parse(text)
	if err != nil {
		return status.Errorf(status.InvalidValue, "file:%s: %w", b.Path, err)
	}
	if bytes == 0 {
		return status.Errorf(status.InvalidValue, "file:%s: size=0 leaves nothing to store on", b.Path)
	}
	b.Size = uint64(bytes)
	return nil
}

// String implements Backend.
func (b FileBackend) String() string {
	text := "file:" + b.Path
	if b.Size > 0 {
		text += ",size=" + size.Bytes(b.Size).String()
	}
	if b.ReadOnly {
		text += ",readonly"
	}
	if b.Direct {
		text += ",direct"
	}
	return text
}

func (b FileBackend) validate(spec *Spec) error {
	switch {
	case b.Path == "":
		return status.Errorf(status.InvalidValue, "file:PATH[,size=SIZE][,readonly][,direct]: the path is empty")
	case b.ReadOnly && b.Size > 0:
		return status.Errorf(status.InvalidValue, "file:%s: size= creates a file, which readonly forbids: leave one of them out", b.Path)
	case b.Size > 0:
		return spec.checkNewSize(b.Size)
	}
	return nil
}

func (b FileBackend) open(spec *Spec) (Volume, error) {
	file, err := b.openFile()
	if err != nil {
		return nil, err
	}
	v, err := b.openOn(spec, file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return v, nil
}

func (b FileBackend) openOn(spec *Spec, file *os.File) (*instance, error) {
	bytes, err := b.usableSize(spec, file)
	if err != nil {
		return nil, err
	}
	uuid, err := identify(file)
	if err != nil {
		return nil, fmt.Errorf("identify %q: %w", b.Path, err)
	}
	info := Info{Name: spec.Name, UUID: uuid, Size: bytes, BlockSize: spec.BlockSize, ReadOnly: b.ReadOnly}
	if !b.ReadOnly {
		info.Capabilities = CanTrim | CanWriteZeroes | CanFUA
	}
	config := fileStoreConfig{
		readOnly: b.ReadOnly, direct: b.Direct, writeStep: max(cachedWriteStep, int(spec.BlockSize)), log: spec.Log,
	}
	if b.Direct {
		config.writeStep = math.MaxInt
		if config.alignment, err = b.directAlignment(spec, file); err != nil {
			return nil, err
		}
	}
	s, err := newFileStore(file, config)
	if err != nil {
		return nil, err
	}
	return newInstance(info, s), nil
}
