// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

const benchMessage = 64 // bytes

// BenchmarkOverhead measures the provider alone, over a libdoca that takes no time
// (testdata/instant.c): one receive, or one send, of a message of 64 bytes. For comparison, the
// emulated provider sends and receives such a message.
func BenchmarkOverhead(b *testing.B) {
	b.Setenv("ZC_DOCA_LIB_PATH", instantLibdoca(b))
	provider := comchdoca.New(comchdoca.Options{})
	for _, batch := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("receive/batch=%d", batch), func(b *testing.B) {
			benchReceives(b, provider, batch)
		})
		b.Run(fmt.Sprintf("send/batch=%d", batch), func(b *testing.B) {
			benchSends(b, provider, batch)
		})
		b.Run(fmt.Sprintf("emulated/batch=%d", batch), func(b *testing.B) {
			comchtest.BenchTurns(b, emulated.New(emulated.Options{Directory: b.TempDir()}), batch)
		})
	}
}

// instantLibdoca compiles testdata and returns the directory of the libraries.
func instantLibdoca(b *testing.B) string {
	testkit.RequireTools(b, "cc")
	directory := b.TempDir()
	library := filepath.Join(directory, "libdoca_common.so")
	output, err := exec.Command("cc", "-O2", "-shared", "-fPIC", "-I../../doca", "-o", library,
		"testdata/absent.c", "testdata/instant.c").CombinedOutput()
	if err != nil {
		b.Fatalf("compile libdoca: %v\n%s", err, output)
	}
	if err := os.Symlink(library, filepath.Join(directory, "libdoca_comch.so")); err != nil {
		b.Fatal(err)
	}
	return directory
}

func connectInstantly(b *testing.B, provider comch.Provider) comch.Connection {
	connection := must[comch.Connection](b)(provider.Connect(b.Context(),
		comch.ClientConfig{Name: "server"}))
	b.Cleanup(func() {
		if err := connection.Close(); err != nil {
			b.Error(err)
		}
	})
	return connection
}

func benchReceives(b *testing.B, provider comch.Provider, batch int) {
	connection := connectInstantly(b, provider)
	consumer := must[comch.Consumer](b)(connection.NewConsumer(b.Context(),
		comch.ConsumerConfig{Receives: 64, MemorySize: 64 * benchMessage}))
	post := func(i int) {
		err := consumer.PostReceive(uint32(i*benchMessage), benchMessage, uint64(i))
		if err != nil {
			b.Fatal(err)
		}
	}
	for i := range 64 {
		post(i)
	}
	received := make([]comch.Received, batch)
	b.ResetTimer()
	for done := 0; done < b.N; {
		consumer.Flush()
		n := consumer.Poll(received)
		for _, r := range received[:n] {
			post(int(r.UserData))
		}
		done += n
	}
	b.StopTimer()
	if err := consumer.Close(); err != nil {
		b.Error(err)
	}
}

func benchSends(b *testing.B, provider comch.Provider, batch int) {
	connection := connectInstantly(b, provider)
	event := must[comch.ConsumerEvent](b)(connection.NextConsumerEvent(b.Context()))
	producer := must[comch.Producer](b)(connection.NewProducer(b.Context(), event.ID))
	late := producer.(comch.LateProducer)
	message := make([]byte, benchMessage)
	b.ResetTimer()
	for done := 0; done < b.N; done += late.Poll() {
		for range batch {
			if err := producer.Send(message, nil); err != nil {
				b.Fatal(err)
			}
		}
		producer.Flush()
	}
	b.StopTimer()
	if err := producer.Close(); err != nil {
		b.Error(err)
	}
}

func must[T any](b *testing.B) func(T, error) T {
	return func(value T, err error) T {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
		return value
	}
}
