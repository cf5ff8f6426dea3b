// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestALogWhoseReaderDoesNotReadHoldsNobodyUp logs more than a pipe holds, and then reads.
func TestALogWhoseReaderDoesNotReadHoldsNobodyUp(t *testing.T) {
	const lines = 4000
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	log, _, err := newTo(&unblocked{file: writer}, "prog", options(t, "--log-sampling", "0"))
	if err != nil {
		t.Fatal(err)
	}
	for range lines {
		log.Info("early", zap.String("text", strings.Repeat("x", 100)))
	}
	log.Info("early", zap.String("text", strings.Repeat("x", 1<<20)))
	drained := make(chan int)
	next := make(chan struct{})
	go func() {
		count := 0
		for scanner := bufio.NewReader(reader); ; {
			line, err := scanner.ReadString('\n')
			if strings.Contains(line, "late") {
				close(next)
				break
			}
			if err != nil {
				break
			}
			count++
		}
		drained <- count
	}()
	for isRead := false; !isRead; { // until the reader has made room
		log.Info("late")
		select {
		case <-next:
			isRead = true
		default:
		}
	}
	if count := <-drained; count == 0 || count >= lines {
		t.Errorf("%d lines of %d have arrived", count, lines)
	}
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
}
