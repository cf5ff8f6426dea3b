// SPDX-License-Identifier: Apache-2.0

package mutualtls

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestABlockedFileSystemDelaysOneConnectionAndNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.WarnLevel)
		c := &Credentials{log: zap.New(core), reading: make(chan struct{}, 1)}
		// A read is in progress, and its file system does not respond.
		c.reading <- struct{}{}
		end := c.beginRead()
		for i, want := range []time.Duration{checkTimeout, 0, 0} {
			start := time.Now()
			c.current()
			if took := time.Since(start); took != want {
				t.Errorf("connection %d waited %v, want %v", i, took, want)
			}
		}
		if logged.FilterMessageSnippet("does not respond").Len() != 1 {
			t.Errorf("logged %v", logged.All())
		}
		end()
		// The next connection checks again; there are no files here.
		c.current()
		if logged.FilterMessageSnippet("cannot be used").Len() != 1 || !c.since.IsZero() {
			t.Errorf("after the file system has responded: logged %v", logged.All())
		}
	})
}
