// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/admin"
)

// call runs a program and returns its exit code and both of its outputs.
func call(t *testing.T, name string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := spawn(t, name, args...)
	code = p.Wait()
	return code, p.Stdout.String(), p.Stderr.String()
}

// sessionList returns the open sessions of a daemon, from a document that is valid.
func sessionList(t *testing.T, program, address string) []admin.Session {
	t.Helper()
	_, stdout, stderr := call(t, program, "sessions", "list", "--admin", address, "-o", "json")
	var list admin.SessionList
	if err := json.Unmarshal([]byte(stdout), &list); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	schema := schematest.Read(t, "../../docs/schemas/sessions.schema.json")
	if err := schema.Check(schematest.Document(t, list)); err != nil {
		t.Error(err)
	}
	return list.Sessions
}

// administration returns the exit code and the document of a command that changes a daemon.
func administration(t *testing.T, program string, args ...string) (int, map[string]any) {
	t.Helper()
	code, stdout, stderr := call(t, program, append(args, "-o", "json")...)
	var document map[string]any
	if err := json.Unmarshal([]byte(stdout), &document); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	schema := schematest.Read(t, "../../docs/schemas/administration.schema.json")
	if err := schema.Check(document); err != nil {
		t.Error(err)
	}
	return code, document
}

func TestAdministratorsListAndEndSessions(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:64MiB"},
		address: listenAddress(t)}
	relayAdmin := "unix:" + filepath.Join(c.dir, "relay.sock")
	targetAdmin := "unix:" + filepath.Join(c.dir, "target.sock")
	c.startTarget("--admin-listen", targetAdmin)
	c.relay = c.startRelay("comch", "--admin-listen", relayAdmin)

	// A client that writes first looks for a file system, in a separate session.
	reads := bench(8)
	reads[slices.Index(reads, "randrw")] = "randread"
	client := c.initiator(reads...)
	var sessions []admin.Session
	testkit.Eventually(t, "the relay has a session with queues", func() bool {
		sessions = sessionList(t, "zc-relay", relayAdmin)
		return len(sessions) == 1 && sessions[0].Queues > 0
	})
	s := sessions[0]
	if !strings.HasSuffix(s.Channel, "/storage_zero_copy_comch") || s.Volume != "disk" ||
		!strings.HasPrefix(s.Peer, fmt.Sprintf("process %d of user ", client.Cmd.Process.Pid)) {
		t.Errorf("the session is %+v", s)
	}
	if _, text, _ := call(t, "zc-relay", "sessions", "list", "--admin",
		relayAdmin); !strings.Contains(text, s.Peer) {
		t.Errorf("the list lacks the client:\n%s", text)
	}
	var list admin.SessionList
	testkit.Eventually(t, "the list shows the rates of the session", func() bool {
		_, text, _ := call(t, "zc-relay", "sessions", "list", "--admin", relayAdmin, "-o", "json",
			"--interval", "100ms")
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
		schema := schematest.Read(t, "../../docs/schemas/sessions.schema.json")
		if err := schema.Check(schematest.Document(t, list)); err != nil {
			t.Fatal(err)
		}
		rates := list.Sessions[0].Rates
		return rates != nil && rates.IOPS > 0 && rates.Bytes > 0 && rates.LatencyNs != nil
	})
	number := fmt.Sprint(s.ID)
	if code, text, errs := call(t, "zc-relay", "sessions", "end", number, "--admin",
		relayAdmin); code != 0 || text != "session "+number+" ends\n" {
		t.Errorf("ending the session: %d %s%s", code, text, errs)
	}
	if code := client.Wait(); code != 1 || !strings.Contains(client.Stderr.String(),
		"an administrator has ended the session") {
		t.Errorf("the client ended with %d: %s", code, client.Stderr.String())
	}
	testkit.Eventually(t, "the session has ended",
		func() bool { return len(sessionList(t, "zc-relay", relayAdmin)) == 0 })
	if code, _, errs := call(t, "zc-relay", "sessions", "end", number, "--admin",
		relayAdmin); code != 2 || !strings.Contains(errs, "there is no session "+number) {
		t.Errorf("ending it again: %d %s", code, errs)
	}

	if code, d := administration(t, "zc-relay", "sessions", "end", number, "--admin",
		relayAdmin); code != 2 || d["error"] == nil {
		t.Errorf("ending it again: %d %v", code, d)
	}

	// The relay's standing connection is a session of the target. The relay makes another one.
	sessions = sessionList(t, "target", targetAdmin)
	if len(sessions) != 1 || sessions[0].Volume != "disk" || sessions[0].Peer == "" {
		t.Fatalf("the target has %+v", sessions)
	}
	former := sessions[0].ID
	if code, _, errs := call(t, "target", "sessions", "end", fmt.Sprint(former), "--admin",
		targetAdmin); code != 0 {
		t.Errorf("ending the target's session: %d %s", code, errs)
	}
	testkit.Eventually(t, "the relay connects again", func() bool {
		sessions = sessionList(t, "target", targetAdmin)
		return len(sessions) == 1 && sessions[0].ID != former
	})
}

func TestADaemonWithoutAFileSaysThatAReloadChangesNothing(t *testing.T) {
	t.Parallel()
	c, relay := startAdministeredChain(t)
	code, document := administration(t, "zc-relay", "reload", "--admin", relay)
	failure, _ := document["error"].(map[string]any)
	if code != 2 || failure["code"] != "NOT_SUPPORTED" {
		t.Errorf("reload: %d %v", code, document)
	}
	c.relay.AwaitLog("reloaded nothing: the daemon has no configuration file")
}

func TestAdministratorsReloadAndChangeTheLogLevel(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:64MiB"},
		address: listenAddress(t)}
	relayAdmin := "unix:" + filepath.Join(c.dir, "relay.sock")
	targetAdmin := "unix:" + filepath.Join(c.dir, "target.sock")
	relayFile, targetFile := filepath.Join(c.dir, "relay.yaml"), filepath.Join(c.dir, "target.yaml")
	writeFile(t, targetFile, []byte("log: {level: info}\n"))
	writeFile(t, relayFile, []byte("log: {level: info}\n"))
	c.startTarget("--admin-listen", targetAdmin, "--config", targetFile)
	c.relay = c.startRelay("comch", "--admin-listen", relayAdmin, "--config", relayFile)
	for program, d := range map[string]struct{ address, file string }{
		"zc-relay": {relayAdmin, relayFile}, "target": {targetAdmin, targetFile}} {
		level := func(want string, more ...string) {
			t.Helper()
			code, text, errs := call(t, program, append([]string{"log-level", "--admin", d.address},
				more...)...)
			if code != 0 || text != want+"\n" {
				t.Errorf("%s log-level %v: %d %q %s", program, more, code, text, errs)
			}
		}
		level("info")
		level("warn", "warn")
		if code, _, errs := call(t, program, "log-level", "loud", "--admin",
			d.address); code != 2 || !strings.Contains(errs,
			`level "loud" is not one of debug, info, warn, error`) {
			t.Errorf("%s: a level that does not exist: %d %s", program, code, errs)
		}
		writeFile(t, d.file, []byte("log: {level: error}\n"))
		if code, text, errs := call(t, program, "reload", "--admin", d.address); code != 0 ||
			text != "reloaded "+d.file+
				"\napplied (at once): log.level: \"info\" is now \"error\"\n" {
			t.Errorf("%s reload: %d %q %s", program, code, text, errs)
		}
		level("error")
		code, document := administration(t, program, "reload", "--admin", d.address)
		if reload, ok := document["reload"].(map[string]any); code != 0 || !ok ||
			reload["ended_at"] == nil {
			t.Errorf("%s reload: %d %v", program, code, document)
		}
		if code, document := administration(t, program, "log-level", "--admin",
			d.address); code != 0 || document["log_level"] != "error" {
			t.Errorf("%s log-level: %d %v", program, code, document)
		}
		writeFile(t, d.file, []byte("log: {level: 7}\n"))
		if code, _, errs := call(t, program, "reload", "--admin", d.address); code != 1 ||
			!strings.Contains(errs, "the reload failed: the configuration is unchanged") {
			t.Errorf("%s: reload of a wrong file: %d %s", program, code, errs)
		}
		code, document = administration(t, program, "reload", "--admin", d.address)
		if failure, _ := document["error"].(map[string]any); code != 1 ||
			failure["code"] != "BAD_CONFIG" {
			t.Errorf("%s: reload of a wrong file: %d %v", program, code, document)
		}
		level("error")
		pending := func(want bool) {
			t.Helper()
			code, text, errs := call(t, program, "status", "--admin", d.address)
			if code != 0 || strings.Contains(text, "\nrestart pending: workers.spin_time\n") != want {
				t.Errorf("%s status: %d %s%s", program, code, text, errs)
			}
		}
		pending(false)
		writeFile(t, d.file, []byte("workers: {spin_time: 1ms}\nlog: {level: error}\n"))
		if code, text, errs := call(t, program, "reload", "--admin", d.address); code != 5 ||
			text != "reloaded "+d.file+": no change takes effect without a restart\n" ||
			!strings.Contains(errs, "restart pending: workers.spin_time") {
			t.Errorf("%s: reload with a setting for a restart: %d %q %s", program, code, text, errs)
		}
		pending(true)
		writeFile(t, d.file, []byte("log: {level: error}\n"))
		if code, _, errs := call(t, program, "reload", "--admin", d.address); code != 0 {
			t.Errorf("%s: reload of the former file: %d %s", program, code, errs)
		}
		pending(false)
		if code, text, errs := call(t, program, "status", "--admin", d.address); code != 0 ||
			!strings.HasPrefix(text, program+" ") {
			t.Errorf("%s status: %d %s%s", program, code, text, errs)
		}
	}
}
