package chain

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func randomBytes(t testing.TB, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	for _, o := range []struct {
		name string
		options
	}{
		{"memory", options{}},
		{"memory with CRC", options{crc: true}},
		{"file", options{spec: volumeName + "=file:" + t.TempDir() + "/disk.img,size=8MiB"}},
	} {
		t.Run(o.name, func(t *testing.T) {
			c := start(t, o.options)
			v := c.open(c.config())
			if got := v.Info().Size; got != volumeSize {
				t.Fatalf("the volume has %d bytes, want %d", got, volumeSize)
			}
			for _, piece := range []struct{ offset, length int }{
				{0, blockSize}, {blockSize, 3 << 20}, {5<<20 + 1, 1}, {5<<20 + 4095, 2}, {5<<20 + 100, 2<<20 + 333},
				{volumeSize - 1, 1}, {volumeSize - 100, 100}, {7, 0},
			} {
				want := randomBytes(t, piece.length)
				if n, err := v.WriteAt(want, int64(piece.offset)); n != piece.length || err != nil {
					t.Fatalf("write %d bytes at %d: %d, %v", piece.length, piece.offset, n, err)
				}
				got := make([]byte, piece.length)
				if n, err := v.ReadAt(got, int64(piece.offset)); n != piece.length || err != nil {
					t.Fatalf("read %d bytes at %d: %d, %v", piece.length, piece.offset, n, err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%d bytes at %d are not what was written", piece.length, piece.offset)
				}
			}
			if err := v.Flush(); err != nil {
				t.Errorf("flush: %v", err)
			}
		})
	}
}

func TestTheEndOfTheVolumeIsTheEndOfReadsAndAnErrorForWrites(t *testing.T) {
	c := start(t, options{})
	v := c.open(c.config())
	buffer := make([]byte, 200)
	if n, err := v.ReadAt(buffer, volumeSize-50); n != 50 || !errors.Is(err, io.EOF) {
		t.Errorf("read across the end: %d, %v", n, err)
	}
	if n, err := v.ReadAt(buffer, volumeSize); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read at the end: %d, %v", n, err)
	}
	if n, err := v.WriteAt(buffer, volumeSize-50); n != 0 || !errors.Is(err, status.InvalidValue) {
		t.Errorf("write across the end: %d, %v", n, err)
	}
	if _, err := v.ReadAt(buffer, -1); !errors.Is(err, status.InvalidValue) {
		t.Errorf("read at -1: %v", err)
	}
}

func TestZeroesAndTrimWorkOnWholeBlocks(t *testing.T) {
	c := start(t, options{})
	v := c.open(c.config())
	if _, err := v.WriteAt(randomBytes(t, 4*blockSize), 0); err != nil {
		t.Fatal(err)
	}
	if err := v.WriteZeroes(blockSize, 2*blockSize); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 2*blockSize)
	if _, err := v.ReadAt(got, blockSize); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, make([]byte, 2*blockSize)) {
		t.Error("zeroes were not written")
	}
	if err := v.Trim(0, 4*blockSize); err != nil {
		t.Errorf("trim: %v", err)
	}
	if err := v.Trim(1, blockSize); !errors.Is(err, status.InvalidValue) {
		t.Errorf("trim inside a block: %v", err)
	}
}

func TestPartsOfABlockAndWholeBlocksDoNotUndoEachOther(t *testing.T) {
	c := start(t, options{})
	v := c.open(c.config())
	var writing sync.WaitGroup
	defer writing.Wait()
	for round := range byte(100) {
		whole, part := bytes.Repeat([]byte{round}, blockSize), []byte{^round}
		writing.Go(func() {
			if _, err := v.WriteAt(part, 100); err != nil {
				t.Errorf("write a part: %v", err)
			}
		})
		if _, err := v.WriteAt(whole, 0); err != nil {
			t.Fatal(err)
		}
		writing.Wait()
		got := make([]byte, blockSize)
		if _, err := v.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		got[100] = round // either order is right for the byte that both write
		if !bytes.Equal(got, whole) {
			t.Fatalf("round %d: a write of a part has undone a write of the block", round)
		}
	}
}

func TestCloseWaitsForCallersAndCanBeRepeated(t *testing.T) {
	c := start(t, options{})
	v := c.open(c.config())
	var reading sync.WaitGroup
	for range 4 {
		reading.Go(func() {
			buffer := make([]byte, 3*blockSize)
			for {
				if _, err := v.ReadAt(buffer, 10); err != nil {
					return
				}
			}
		})
	}
	time.Sleep(10 * time.Millisecond)
	if err := v.Close(c.context()); err != nil {
		t.Errorf("close: %v", err)
	}
	reading.Wait()
	if err := v.Close(c.context()); err != nil {
		t.Errorf("second close: %v", err)
	}
	v.Abort()
	if _, err := v.ReadAt(make([]byte, 1), 0); err == nil {
		t.Error("a closed volume reads")
	}
}
