package administer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// run runs a command against a daemon whose every reply has the given body.
func run(t *testing.T, body string, words ...string) (stdout string, err error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, body)
	}))
	defer server.Close()
	root := &cobra.Command{Use: "target", SilenceUsage: true}
	root.AddCommand(NewCommands("")...)
	var output bytes.Buffer
	root.SetOut(&output)
	root.SetErr(io.Discard)
	root.SetArgs(append(words, "--admin", strings.TrimPrefix(server.URL, "http://")))
	err = root.ExecuteContext(t.Context())
	return output.String(), err
}

func TestTheStatusOfAnotherVersionIsPrintedAsJSON(t *testing.T) {
	const document = `{"schema":"zc-relay.status/99","channels":"of another type"}`
	if stdout, err := run(t, document, "status", "-o", "json"); err != nil || stdout != document {
		t.Errorf("as JSON: %q, error %v", stdout, err)
	}
	stdout, err := run(t, `{"schema":"zc-relay.status/99"}`, "status")
	if err == nil || !strings.Contains(err.Error(), "zc-relay.status/99") || stdout != "" {
		t.Errorf("as text: %q, error %v", stdout, err)
	}
}

func TestAStatusThatIsNoDocumentFailsWithOne(t *testing.T) {
	stdout, err := run(t, "<html>", "status", "-o", "json")
	var outcome Outcome
	if decoding := json.Unmarshal([]byte(stdout), &outcome); err == nil || decoding != nil ||
		outcome.Operation != operationStatus || outcome.Error == nil {
		t.Errorf("stdout %q, error %v", stdout, err)
	}
}
