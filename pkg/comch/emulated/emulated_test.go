package emulated

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
)

func TestProviderConforms(t *testing.T) {
	comchtest.Run(t, comchtest.Config{
		Provider:              New(Options{Directory: t.TempDir()}),
		OtherDevice:           "03:00.1",
		OtherHostDevice:       "b1:00.1",
		ExportNeedsDescriptor: true,
	})
}

func BenchmarkProvider(b *testing.B) {
	comchtest.Bench(b, comchtest.Config{Provider: New(Options{Directory: b.TempDir()})})
}
