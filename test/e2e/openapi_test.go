// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	validation "github.com/pb33f/libopenapi-validator/errors"
	"github.com/pb33f/libopenapi-validator/paths"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// inspector stands between a client and an admin listener, and compares what passes with the
// description of the listener.
type inspector struct {
	t         *testing.T
	socket    string
	model     *v3.Document
	validator validator.Validator

	mu         sync.Mutex
	operations map[string]int // how many requests there were
}

// startInspector returns a client of the listener at a socket, which reaches it through an
// inspector.
func startInspector(t *testing.T, socket, description string) (*inspector, *admin.Client) {
	t.Helper()
	text, err := os.ReadFile(description)
	if err != nil {
		t.Fatal(err)
	}
	document, err := libopenapi.NewDocument(text)
	if err != nil {
		t.Fatal(err)
	}
	model, err := document.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	i := &inspector{t: t, socket: socket, model: &model.Model, operations: make(map[string]int)}
	var wrong []error
	if i.validator, wrong = validator.NewValidator(document); wrong != nil {
		t.Fatal(errors.Join(wrong...))
	}
	if _, wrong := i.validator.ValidateDocument(); wrong != nil {
		i.report("the description", wrong)
	}
	server := httptest.NewServer(i)
	t.Cleanup(server.Close)
	client, err := admin.New(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return i, client
}

func (i *inspector) report(what string, wrong []*validation.ValidationError) {
	for _, e := range wrong {
		i.t.Errorf("%s: %s: %s", what, e.Message, e.Reason)
		for _, s := range e.SchemaValidationErrors {
			i.t.Errorf("%s: %s: %s", what, s.FieldPath, s.Reason)
		}
	}
}

// ServeHTTP passes a request on, and its reply back.
func (i *inspector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		i.t.Error(err)
		return
	}
	forward := func() *http.Request {
		request, err := http.NewRequestWithContext(r.Context(), r.Method,
			"http://localhost"+r.URL.RequestURI(), bytes.NewReader(body))
		if err != nil {
			panic(err)
		}
		request.Header = r.Header.Clone()
		if len(body) > 0 {
			request.Header.Set("Content-Type", "application/json")
		}
		return request
	}
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", i.socket)
		}}
	response, err := transport.RoundTrip(forward())
	if err != nil {
		i.t.Error(err)
		return
	}
	reply, err := io.ReadAll(response.Body)
	if err != nil {
		i.t.Error(err)
	}
	_ = response.Body.Close()
	i.inspect(forward, response, reply)
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(reply)
}

// inspect compares a request and its reply with the description.
func (i *inspector) inspect(request func() *http.Request, response *http.Response, reply []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	r := request()
	what := r.Method + " " + r.URL.Path
	item, wrong := i.model.Paths.PathItems.GetOrZero(r.URL.Path), []*validation.ValidationError(nil)
	if item == nil {
		item, wrong, _ = paths.FindPath(r, i.model, config.NewValidationOptions())
	}
	if item == nil {
		i.report(what, wrong)
		return
	}
	operation := item.GetOperations().GetOrZero(strings.ToLower(r.Method))
	if operation == nil {
		i.t.Errorf("%s is not described", what)
		return
	}
	i.operations[operation.OperationId]++
	isSuccess := response.StatusCode/100 == 2
	if _, wrong := i.validator.ValidateHttpRequestSync(request()); isSuccess {
		i.report(what, wrong)
	}
	code := fmt.Sprint(response.StatusCode)
	if operation.Responses.Codes.GetOrZero(code) == nil {
		i.t.Errorf("%s: a reply with %s is not described: %s", what, code, reply)
	}
	if isSuccess != (response.Header.Get(admin.CodeHeader) == "") {
		i.t.Errorf("%s: the reply %s has the header %v", what, code, response.Header)
	}
	described := operation.Responses.Codes.GetOrZero(code)
	if described == nil || described.Content == nil {
		if len(reply) > 0 {
			i.t.Errorf("%s: the reply has content: %s", what, reply)
		}
		return
	}
	media, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
	if described.Content.GetOrZero(media) == nil {
		i.t.Errorf("%s: a reply of type %q is not described", what, media)
	}
	if media != "application/json" {
		return
	}
	response.Body = io.NopCloser(bytes.NewReader(reply))
	_, wrong = i.validator.ValidateHttpResponse(request(), response)
	i.report(what, wrong)
}

// expectAll fails unless there was a request for every operation of the description.
func (i *inspector) expectAll() {
	i.mu.Lock()
	defer i.mu.Unlock()
	var missing []string
	for path := range i.model.Paths.PathItems.ValuesFromOldest() {
		for o := range path.GetOperations().ValuesFromOldest() {
			if i.operations[o.OperationId] == 0 {
				missing = append(missing, o.OperationId)
			}
		}
	}
	if missing != nil {
		slices.Sort(missing)
		i.t.Errorf("nothing has asked for %q", missing)
	}
}

// exchange makes the calls that both daemons reply to.
func (i *inspector) exchange(ctx context.Context, client *admin.Client, file string) {
	i.t.Helper()
	description, err := os.ReadFile(file)
	if err != nil {
		i.t.Fatal(err)
	}
	if served, err := client.OpenAPI(ctx); err != nil || !bytes.Equal(served, description) {
		i.t.Errorf("the daemon does not serve %s: %v", file, err)
	}
	_, err = client.Status(ctx)
	level, levelErr := client.LogLevel(ctx)
	err = errors.Join(err, levelErr, client.SetLogLevel(ctx, "debug"),
		client.SetLogLevel(ctx, level), client.StartTrace(ctx))
	_, traceErr := client.StopTrace(ctx)
	_, reloadErr := client.Reload(ctx)
	if err := errors.Join(err, traceErr, reloadErr); err != nil {
		i.t.Error(err)
	}
	for name, during := range map[string]time.Duration{"": 0, admin.ProfileCommand: 0,
		admin.ProfileSymbols: 0, admin.ProfileCPU: time.Second, admin.ProfileTrace: time.Second,
		"goroutine": 0} {
		if content, err := client.Profile(ctx, name, during); err != nil || len(content) == 0 {
			i.t.Errorf("profile %q: %d bytes, %v", name, len(content), err)
		}
	}
	sessions, err := client.Sessions(ctx)
	if err != nil || len(sessions) == 0 {
		i.t.Fatalf("the daemon has %d sessions, %v", len(sessions), err)
	}
	i.expectError(client.EndSession(ctx, 1<<40), status.NotFound)
	i.expectError(client.SetLogLevel(ctx, "loud"), status.InvalidValue)
	if err := client.EndSession(ctx, sessions[0].ID); err != nil {
		i.t.Error(err)
	}
}

func (i *inspector) expectError(err error, code status.Code) {
	i.t.Helper()
	if !errors.Is(err, code) {
		i.t.Errorf("%v, want %v", err, code)
	}
}

// startClient starts a client of a channel that stays, and waits until it has a session.
func startClient(k *keeper, channel string, flags ...string) {
	k.initiator(append(append(bench(1), "--command-channel-name", channel), flags...)...)
	testkit.Eventually(k.t, "a client is there",
		func() bool { return k.list()[channel].Sessions > 0 })
}

func TestARelayDoesWhatItsDescriptionSays(t *testing.T) {
	t.Parallel()
	const file = "../../docs/openapi-relay.json"
	k := startKeeper(t, "disk=memory:16MiB")
	startClient(k, "first")
	i, client := startInspector(t, strings.TrimPrefix(k.admin, admin.UnixPrefix), file)
	ctx := testkit.Context(t)
	i.exchange(ctx, client, file)

	added, err := client.AddChannel(ctx, k.described("vm7"))
	if err != nil || added.FullName != "03:00.0/b1:00.0/vm7" {
		t.Errorf("added %+v, %v", added, err)
	}
	_, err = client.AddChannel(ctx, k.described("vm7"))
	i.expectError(err, status.AlreadyExist)
	_, err = client.AddChannel(ctx, admin.NewChannel{Name: "vm8", Volume: "disk", Target: "x"})
	i.expectError(err, status.InvalidValue)
	if all, err := client.Channels(ctx); err != nil || len(all) != 2 {
		t.Errorf("the channels are %+v, %v", all, err)
	}
	limits := admin.ChannelQoS{Session: admin.RateLimits{IOPS: "100"}}
	limited, err := client.LimitChannel(ctx, "vm7", limits)
	if err != nil || limited.QoS.Session.IOPS != "100" {
		t.Errorf("limited %+v, %v", limited, err)
	}
	_, err = client.LimitChannel(ctx, "first", limits)
	i.expectError(err, status.BadState)
	moved, err := client.MoveChannel(ctx, "vm7",
		admin.ChannelTargets{Targets: []string{k.at("127.0.0.2"), k.at("127.0.0.3")}}, true)
	if err != nil || len(moved.Targets) != 2 || moved.Target != "" {
		t.Errorf("moved %+v, %v", moved, err)
	}
	_, err = client.MoveChannel(ctx, "none", admin.ChannelTargets{Target: "a:1"}, false)
	i.expectError(err, status.NotFound)
	if err := client.RemoveChannel(ctx, "vm7", false); err != nil {
		t.Error(err)
	}
	i.expectError(client.RemoveChannel(ctx, "vm7", true), status.NotFound)

	for name, call := range map[string]func(context.Context) (admin.DrainState, error){
		"drain": client.Drain, "state": client.DrainState, "resume": client.Resume} {
		if _, err := call(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	i.expectAll()
}

func TestATargetDoesWhatItsDescriptionSays(t *testing.T) {
	t.Parallel()
	const file = "../../docs/openapi-target.json"
	c := &chain{t: t, dir: t.TempDir(), address: listenAddress(t)}
	c.volumes = []string{"disk=file:" + filepath.Join(c.dir, "disk") + ",size=1MiB,exclusive"}
	socket := filepath.Join(c.dir, "target.sock")
	c.startTarget("--admin-listen", admin.UnixPrefix+socket)
	c.relay = c.startRelay("comch")
	c.initiator(bench(1)...)
	i, client := startInspector(t, socket, file)
	ctx := testkit.Context(t)
	holder := func() string {
		all, err := client.Volumes(ctx)
		if err != nil || len(all) == 0 {
			t.Fatalf("the volumes are %+v, %v", all, err)
		}
		return all[0].HolderID
	}
	testkit.Eventually(t, "a client has the volume", func() bool { return holder() != "" })
	if err := client.PreemptHolder(ctx, "disk", holder()); err != nil {
		t.Error(err)
	}
	i.expectError(client.PreemptHolder(ctx, "disk", "nonsense"), status.InvalidValue)

	extra := admin.NewVolume{Name: "extra", Backend: "file:" + filepath.Join(c.dir, "extra") +
		",size=1MiB", BlockSize: 512}
	if v, err := client.AddVolume(ctx, extra); err != nil || v.Size != 1<<20 {
		t.Errorf("added %+v, %v", v, err)
	}
	_, err := client.AddVolume(ctx, extra)
	i.expectError(err, status.AlreadyExist)
	_, err = client.AddVolume(ctx, admin.NewVolume{Name: "elsewhere",
		Backend: "file:" + filepath.Join(t.TempDir(), "disk") + ",size=1MiB", BlockSize: 512})
	i.expectError(err, status.NotPermitted)
	if v, err := client.ResizeVolume(ctx, "extra", admin.VolumeSize{Size: 2 << 20}); err != nil ||
		v.Size != 2<<20 {
		t.Errorf("resized %+v, %v", v, err)
	}
	_, err = client.ResizeVolume(ctx, "extra", admin.VolumeSize{Size: 1 << 20})
	i.expectError(err, status.BadState)
	if err := client.RemoveVolume(ctx, "extra", true); err != nil {
		t.Error(err)
	}
	i.expectError(client.RemoveVolume(ctx, "extra", false), status.NotFound)
	testkit.Eventually(t, "the relay has a session", func() bool {
		sessions, err := client.Sessions(ctx)
		return err == nil && len(sessions) > 0
	})
	i.exchange(ctx, client, file)
	i.expectAll()
}
