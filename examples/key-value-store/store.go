// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/client"
)

// A volume holds a log of records, each with a key and a value. A record has a header of big-endian
// numbers: the checksum of what follows, its number in the log, and the lengths of key and value.
// The log ends where the next number is missing, or the checksum is wrong.
const headerSize = 4 + 8 + 2 + 4

// Limits of a record, in bytes.
const (
	maxKey   = 1 << 10
	maxValue = 1 << 20
)

// errNotFound is the error of Get for a key that the store does not have.
var errNotFound = errors.New("no such key")

// store is a map from keys to values on a volume. Any goroutine may call its methods.
type store struct {
	volume  *client.Volume
	flusher *client.Flusher

	mu     sync.Mutex // guards the fields below
	index  map[string]place
	end    int64    // of the log, in bytes
	count  uint64   // records in the log
	recent []record // that no flush has made durable
}

// place is where a value is in the volume.
type place struct {
	offset int64
	length int
}

// record is one that may have to be written again, and its offset.
type record struct {
	offset int64
	parts  [][]byte
}

// openStore reads the log of a volume.
func openStore(volume *client.Volume) (*store, error) {
	s := &store{volume: volume, flusher: volume.NewFlusher(), index: map[string]place{}}
	log := bufio.NewReaderSize(io.NewSectionReader(volume, 0, volume.Size()), 1<<20)
	for {
		isRecord, err := s.readRecord(log)
		if err != nil {
			return nil, fmt.Errorf("read record %d at %d: %w", s.count+1, s.end, err)
		}
		if !isRecord {
			return s, nil
		}
	}
}

// readRecord reads the next record, and reports whether there is one.
func (s *store) readRecord(log io.Reader) (bool, error) {
	header := make([]byte, headerSize)
	if isThere, err := readFull(log, header); !isThere {
		return false, err
	}
	number := binary.BigEndian.Uint64(header[4:])
	keyLength, valueLength := int(binary.BigEndian.Uint16(header[12:])),
		int(binary.BigEndian.Uint32(header[14:]))
	if number != s.count+1 || keyLength > maxKey || valueLength > maxValue {
		return false, nil
	}
	data := make([]byte, keyLength+valueLength)
	if isThere, err := readFull(log, data); !isThere {
		return false, err
	}
	if binary.BigEndian.Uint32(header) != checksum(header[4:], data) {
		return false, nil
	}
	s.append(string(data[:keyLength]), keyLength, valueLength)
	return true, nil
}

// readFull fills p. It returns false at the end of the volume.
func readFull(log io.Reader, p []byte) (bool, error) {
	_, err := io.ReadFull(log, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	}
	return err == nil, err
}

func checksum(parts ...[]byte) uint32 {
	sum := uint32(0)
	for _, p := range parts {
		sum = crc32.Update(sum, crc32.IEEETable, p)
	}
	return sum
}

// append adds a record that is at the end of the log.
func (s *store) append(key string, keyLength, valueLength int) {
	s.index[key] = place{s.end + headerSize + int64(keyLength), valueLength}
	s.end += headerSize + int64(keyLength) + int64(valueLength)
	s.count++
}

// put sets the value of a key. It survives a crash of the target after the next sync.
func (s *store) put(ctx context.Context, key string, value []byte) error {
	if len(key) > maxKey || len(value) > maxValue {
		return fmt.Errorf("put key of %d bytes with %d bytes: at most %d and %d are allowed",
			len(key), len(value), maxKey, maxValue)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	header := make([]byte, headerSize)
	binary.BigEndian.PutUint64(header[4:], s.count+1)
	binary.BigEndian.PutUint16(header[12:], uint16(len(key)))
	binary.BigEndian.PutUint32(header[14:], uint32(len(value)))
	r := record{s.end, [][]byte{header, []byte(key), append([]byte(nil), value...)}}
	binary.BigEndian.PutUint32(header, checksum(header[4:], r.parts[1], r.parts[2]))
	if _, err := s.volume.WriteVAtContext(ctx, r.parts, r.offset); err != nil {
		return fmt.Errorf("put key %q: %w", key, err) // the log ends where it did
	}
	s.recent = append(s.recent, r)
	s.append(key, len(key), len(value))
	return nil
}

// get returns the value of a key.
func (s *store) get(ctx context.Context, key string) ([]byte, error) {
	s.mu.Lock()
	at, ok := s.index[key]
	s.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("get key %q: %w", key, errNotFound)
	}
	value := make([]byte, at.length)
	if _, err := s.volume.ReadAtContext(ctx, value, at.offset); err != nil {
		return nil, fmt.Errorf("get key %q: %w", key, err)
	}
	return value, nil
}

// sync makes all records durable. If the target has restarted before, and may have lost records,
// sync writes them again.
func (s *store) sync(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.flusher.FlushContext(ctx)
	for errors.Is(err, client.ErrWritesLost) {
		for _, r := range s.recent {
			if _, err := s.volume.WriteVAtContext(ctx, r.parts, r.offset); err != nil {
				return fmt.Errorf("write the record at %d again: %w", r.offset, err)
			}
		}
		err = s.flusher.FlushContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	s.recent = nil
	return nil
}
