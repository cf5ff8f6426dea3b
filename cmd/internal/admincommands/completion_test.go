// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/pkg/admin"
)

// complete returns what a shell offers for the last word of a line.
func complete(t *testing.T, words ...string) string {
	t.Helper()
	root := &cobra.Command{Use: "target"}
	root.AddCommand(append(NewCommands(Daemon{}), NewVolumeCommand(Daemon{}),
		NewChannelCommand(Daemon{}, noSource{}))...)
	var stdout bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(io.Discard)
	root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, words...))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Error(err)
	}
	return stdout.String()
}

// noSource is a source of no channels.
type noSource struct{}

func (noSource) AddFlags(*pflag.FlagSet) {}

func (noSource) Load(string, string, io.Reader) (admin.NewChannel, error) {
	return admin.NewChannel{}, nil
}

func TestOperandsAreCompletedWithWhatTheDaemonHas(t *testing.T) {
	handlers := http.NewServeMux()
	for path, document := range map[string]string{
		admin.SessionsPath: `{"sessions":[{"id":7,"channel":"c","peer":"process 9","volume":"v"}]}`,
		admin.ChannelsPath: `{"channels":[` +
			`{"channel":"d/r/a","name":"a","volume":"v","origin":"administrator"},` +
			`{"channel":"d/r/b","name":"b","volume":"v","origin":"configuration"},` +
			`{"channel":"d/s/b","name":"b","volume":"v","origin":"administrator"}]}`,
		admin.VolumesPath: `{"volumes":[{"name":"disk","kind":"file","size_bytes":4096}]}`,
	} {
		handlers.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, document)
		})
	}
	server := httptest.NewServer(handlers)
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	for line, want := range map[string]string{
		"sessions end":       "7\tc process 9, volume v\n:4\n",
		"volume remove":      "disk\tfile, 4KiB\n:4\n",
		"volume preempt":     "disk\tfile, 4KiB\n:4\n",
		"volume resize":      "disk\tfile, 4KiB\n:4\n",
		"volume resize disk": ":4\n",
		"channel remove":     "a\td/r/a, volume v\nd/s/b\td/s/b, volume v\n:4\n",
		"channel limit":      "a\td/r/a, volume v\nd/s/b\td/s/b, volume v\n:4\n",
		"channel move":       "a\td/r/a, volume v\nd/s/b\td/s/b, volume v\n:4\n",
		"channel move a":     ":4\n",
	} {
		words := append(strings.Fields(line), "--admin", address, "")
		if got := complete(t, words...); got != want {
			t.Errorf("%s is completed with %q, want %q", line, got, want)
		}
	}
}

func TestADaemonThatDoesNotAnswerDelaysAShellBriefly(t *testing.T) {
	asked := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done() // the client has given up
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	if got := complete(t, "sessions", "end", "--admin", address, ""); got != ":4\n" {
		t.Errorf("the completion is %q", got)
	}
	<-asked
}
