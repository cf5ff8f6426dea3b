// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/schematest"
)

// run runs a command against a daemon whose every reply has the given body.
func run(t *testing.T, body string, words ...string) (stdout string, err error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, body)
	}))
	defer server.Close()
	root := &cobra.Command{Use: "target", SilenceUsage: true}
	root.AddCommand(NewCommands(Daemon{})...)
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

func TestAReloadTellsWhatItHasDone(t *testing.T) {
	const ended = `"started_at":"2026-01-02T03:04:05Z","ended_at":"2026-01-02T03:04:06Z"`
	const level = `{"key":"log.level","former":"info","now":"debug","effect":"at once"}`
	const channel = `{"key":"channels[c]","now":"added","element":true,"effect":"at once"}`
	for _, c := range []struct {
		name, body, text, err string
		code                  int
	}{
		{name: "nothing", body: `{` + ended + `,"config_file":"/f"}`,
			text: "reloaded /f: no setting has changed\n"},
		{name: "everything", body: `{` + ended + `,"config_file":"/f","applied":[` + level + `]}`,
			text: "reloaded /f\napplied (at once): log.level: \"info\" is now \"debug\"\n"},
		{name: "a part", code: program.ExitRestart,
			body: `{` + ended + `,"config_file":"/f",` +
				`"restart_pending":["rdma.crc","workers.cpus"]}`,
			text: "reloaded /f: no change takes effect without a restart\n",
			err: "restart pending: rdma.crc, workers.cpus: restart the daemon to apply the " +
				"configuration file"},
		{name: "a failure", code: program.ExitFailure,
			body: `{` + ended + `,"config_file":"/f","applied":[` + level + `],"failed":[` +
				channel + `],"error":"no device","code":"BAD_CONFIG",` +
				`"restart_pending":["rdma.crc"]}`,
			text: "applied (at once): log.level: \"info\" is now \"debug\"\n" +
				"not applied: channels[c] added\nrestart pending: rdma.crc\n",
			err: "the reload failed: no device [BAD_CONFIG]"},
		{name: "no file", code: program.ExitUsage,
			body: `{` + ended + `,"error":"no configuration file","code":"NOT_SUPPORTED"}`,
			err:  "no configuration file [NOT_SUPPORTED]"},
		{name: "certificates", body: `{` + ended + `,"certificates":true}`,
			text: "reloaded the certificates; the daemon has no configuration file\n"},
		{name: "in progress", code: program.ExitFailure,
			body: `{"started_at":"2026-01-02T03:04:05Z","ended_at":null}`,
			err:  "the reload has not ended yet: status shows its outcome [IN_PROGRESS]"},
		{name: "blocked", code: program.ExitFailure,
			body: `{"started_at":"2026-01-02T03:04:05Z","ended_at":null,"config_file":"/f",` +
				`"error":"blocked","code":"IN_PROGRESS"}`,
			err: "blocked [IN_PROGRESS]"},
		{name: "former release", body: `{` + ended + `}`, text: "reloaded\n"},
		{name: "failure of a former release", code: program.ExitFailure,
			body: `{` + ended + `,"error":"no"}`, err: "the reload failed: no [BAD_CONFIG]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := func(err error) string {
				if err == nil {
					return ""
				}
				return err.Error()
			}
			stdout, err := run(t, c.body, "reload")
			if program.ExitCode(err) != c.code || text(err) != c.err || stdout != c.text {
				t.Errorf("as text: %q, error %v, code %d", stdout, err, program.ExitCode(err))
			}
			stdout, err = run(t, c.body, "reload", "-o", "json")
			if program.ExitCode(err) != c.code {
				t.Errorf("as JSON: error %v, code %d", err, program.ExitCode(err))
			}
			var document any
			if err := json.Unmarshal([]byte(stdout), &document); err != nil {
				t.Fatal(err)
			}
			schema := schematest.Read(t, "../../../docs/schemas/administration.schema.json")
			if err := schema.Check(document); err != nil {
				t.Error(err)
			}
			failure, hasFailed := document.(map[string]any)["error"].(map[string]any)
			if hasFailed != (c.err != "" && c.code != program.ExitRestart) ||
				hasFailed && failure["code"] == "UNKNOWN" {
				t.Errorf("as JSON: %s", stdout)
			}
		})
	}
}

func TestTheConfigurationFileSaysWhereTheDaemonIs(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"level":"warn"}`)
	}))
	defer server.Close()
	addresses := map[string]string{"good": strings.TrimPrefix(server.URL, "http://"), "without": "",
		"wrong": "nowhere"}
	daemon := Daemon{Address: "unix:/no/such/socket", AddressIn: func(file string) (address,
		tokenFile string, err error) {
		address, found := addresses[file]
		if !found {
			return "", "", fs.ErrNotExist
		}
		return address, "", nil
	}}
	for line, want := range map[string]string{
		"log-level --config good":                "",
		"log-level -c good":                      "",
		"log-level":                              "/no/such/socket",
		"log-level --config without":             "without has no operations.admin",
		"log-level --config wrong":               "wrong: operations.admin: ",
		"log-level --config none":                "--config: file does not exist",
		"log-level --config good --admin unix:/": "none of the others can be",
		"trace --config without file":            "without has no operations.admin",
		"top --config without":                   "without has no operations.admin",
	} {
		root := &cobra.Command{Use: "target", SilenceUsage: true}
		root.AddCommand(NewCommands(daemon)...)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		root.SetArgs(strings.Fields(line))
		err := root.ExecuteContext(t.Context())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// A daemon at a port wants a token. What the command line says overrides the environment.
func TestAddressAndTokenComeFromFlagsOrVariables(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer 0123456789abcdef" {
			http.Error(w, "the token is wrong", http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"level":"warn"}`)
	}))
	defer server.Close()
	right, wrong := filepath.Join(t.TempDir(), "right"), filepath.Join(t.TempDir(), "wrong")
	for file, token := range map[string]string{right: "0123456789abcdef\n",
		wrong: "fedcba9876543210"} {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address := strings.TrimPrefix(server.URL, "http://")
	daemon := Daemon{Address: "unix:/no/such/socket", Variable: "ZC_TEST_ADMIN",
		AddressIn: func(string) (string, string, error) { return address, right, nil }}
	for _, c := range []struct{ address, token, line, want string }{
		{address, right, "log-level", ""},
		{"", "", "log-level --admin " + address + " --admin-token-file " + right, ""},
		{"unix:/none", wrong, "log-level --admin " + address + " --admin-token-file " + right, ""},
		{"unix:/none", "", "log-level --config file", ""},
		{address, "", "log-level", "the token is wrong: give the same file by --admin-token-file"},
		{address, wrong, "log-level", "the token is wrong"},
		{address, "/none", "log-level", "/none"},
		{"nowhere", "", "log-level", `$ZC_TEST_ADMIN: admin address "nowhere"`},
		{address, right, "log-level --admin unix:/none", "/none"},
	} {
		t.Setenv("ZC_TEST_ADMIN", c.address)
		t.Setenv("ZC_TEST_ADMIN_TOKEN_FILE", c.token)
		root := &cobra.Command{Use: "target", SilenceUsage: true}
		root.AddCommand(NewCommands(daemon)...)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		root.SetArgs(strings.Fields(c.line))
		err := root.ExecuteContext(t.Context())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestTheLogLevelIsNamedAsInTheConfiguration(t *testing.T) {
	for level, want := range map[string]string{"debug": "debug", "70": "debug", "20": "error",
		"WARNING": "warn", "loud": "", "71": "", "10": "", "disable": ""} {
		set := ""
		server := httptest.NewServer(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPut {
					var document struct{ Level string }
					if err := json.NewDecoder(r.Body).Decode(&document); err != nil {
						t.Error(err)
					}
					set = document.Level
				}
				fmt.Fprintf(w, `{"level":%q}`, set)
			}))
		root := &cobra.Command{Use: "target", SilenceUsage: true}
		root.AddCommand(NewCommands(Daemon{})...)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		root.SetArgs([]string{"log-level", level, "--admin",
			strings.TrimPrefix(server.URL, "http://")})
		if err := root.ExecuteContext(t.Context()); (err == nil) != (want != "") || set != want {
			t.Errorf("%s: %q, want %q, error %v", level, set, want, err)
		}
		server.Close()
	}
}
