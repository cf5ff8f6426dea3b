// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// apiVersion is the version of what routes describes. The minor number rises when something is
// added. Nothing is removed or changed within a major version, and neither is it in the documents,
// whose field "schema" has a version of its own.
const apiVersion = "1.0"

// The daemons that have a route.
const (
	byRelay  = "relay"
	byTarget = "target"
	byBoth   = "relay target"
)

// route is a row of the table of what the admin listener serves. The descriptions of the API,
// docs/openapi-relay.json and docs/openapi-target.json, are made of it: "make generate".
type route struct {
	operation    string // by which handle registers it
	method, path string // a pattern of http.ServeMux without wildcards for several segments
	daemons      string // byRelay, byTarget, or byBoth
	summary      string
	description  string
	parameters   []routeParameter
	request      content // of a request without a body, the zero content
	response     content // of a reply with 204, the zero content
	// codes are what it fails with, besides a request that is wrong as a whole.
	codes []status.Code
	busy  bool // only a few of its requests may be in progress
}

// content is what a request or a reply contains.
type content struct {
	mediaType string // "" for JSON
	// schema names a component of the description, made of a schema in docs/; "" for no content, or
	// for text and bytes.
	schema  string
	example string
}

// isNone reports whether there is no content.
func (c *content) isNone() bool { return *c == content{} }

type routeParameter struct {
	name, in, text string // in is "path" or "query"
	kind           string // "string", "integer", or "boolean"
	example        any
}

var (
	waitParameter = routeParameter{name: admin.WaitParameter, in: "query", kind: "integer",
		text: "How many milliseconds the reply may take; 5000 if it is absent. A change that has " +
			"not ended then goes on, and the reply is IN_PROGRESS.", example: 60000}
	forceParameter = routeParameter{name: admin.ForceParameter, in: "query", kind: "boolean",
		text:    "Do not wait for requests in flight, which then fail at their clients.",
		example: false}
	volumeParameter = routeParameter{name: "name", in: "path", kind: "string",
		text: "Name of the volume.", example: "disk"}
	channelParameter = routeParameter{name: "name", in: "path", kind: "string",
		text: "Name of the service if one channel has it, or DEVICE/REPRESENTOR/NAME, where %2F " +
			"stands for a slash.", example: "vm7"}
	secondsParameter = routeParameter{name: "seconds", in: "query", kind: "integer",
		text: "How long to measure.", example: 1}
)

const (
	exampleStatus = `{"schema":"zc-relay.status/1","program":"target","version":"1.0.0",` +
		`"pid":4711,"started_at":"2026-01-02T03:04:05Z","now":"2026-01-02T03:05:05Z",` +
		`"ready":true,"workers":[]}`
	exampleSessions = `{"schema":"zc-relay.sessions/1","sessions":[{"id":7,` +
		`"opened_at":"2026-01-02T03:04:05Z","channel":"03:00.0/b1:00.0/vm7",` +
		`"peer":"process 812 of user 1000","volume":"disk","client":"qemu","queues":1,` +
		`"io":{"succeeded":10,"failed":0,"bytes":40960,"latency_ns":120000,"in_flight":0},` +
		`"transports":["iwarp"]}]}`
	exampleReload = `{"started_at":"2026-01-02T03:04:05Z","ended_at":"2026-01-02T03:04:06Z",` +
		`"config_file":"/etc/zc-relay/zc-relay.yaml","applied":[{"key":"log.level",` +
		`"former":"info","now":"debug","effect":"at once"}]}`
	exampleDrain  = `{"draining":true,"since":"2026-01-02T03:04:05Z","sessions":2}`
	exampleVolume = `{"name":"disk","backend":"memory:1GiB","block_size_bytes":4096,` +
		`"kind":"memory","uuid":"6f0a1d2c-0000-4000-8000-000000000001","size_bytes":1073741824,` +
		`"read_only":false,"exclusive":false,"sessions":0,"state":"serving",` +
		`"since":"2026-01-02T03:04:05Z","origin":"administrator"}`
	exampleNewChannel = `{"name":"vm7","representor":"b1:00.1","target":"10.0.0.5:7470",` +
		`"volume":"disk7","qos":{"channel":{"iops":"20000"}}}`
	exampleChannel = `{"channel":"03:00.0/b1:00.1/vm7","name":"vm7","device":"03:00.0",` +
		`"representor":"b1:00.1","target":"10.0.0.5:7470","volume":"disk7",` +
		`"qos":{"channel":{"iops":"20000","bandwidth":"infinite","burst":"100ms"}},` +
		`"origin":"administrator","source":"/var/lib/zc-relay/channels.yaml",` +
		`"state":"listening","since":"2026-01-02T03:04:05Z","serving_target":"10.0.0.5:7470",` +
		`"link":"ready","sessions":0}`
	textPlain   = "text/plain"
	profileType = "application/octet-stream"
)

// routes is all that the admin listener can serve: what has no row here is not served.
var routes = []route{
	{operation: "getStatus", method: http.MethodGet, path: admin.StatusPath, daemons: byBoth,
		summary:  "Status of the daemon, with its channels or volumes, sessions, and workers",
		response: content{schema: "Status", example: exampleStatus}, busy: true},
	{operation: "getOpenAPI", method: http.MethodGet, path: admin.OpenAPIPath, daemons: byBoth,
		summary:  "This description",
		response: content{schema: "OpenAPI"}},
	{operation: "getLogLevel", method: http.MethodGet, path: admin.LogLevelPath, daemons: byBoth,
		summary:  "Lowest severity that is logged",
		response: content{schema: "LogLevel", example: `{"level":"info"}`}},
	{operation: "setLogLevel", method: http.MethodPut, path: admin.LogLevelPath, daemons: byBoth,
		summary:     "Change the lowest severity that is logged",
		description: "It lasts until the next start or reload. The reply has the new level.",
		request:     content{schema: "LogLevel", example: `{"level":"debug"}`},
		response:    content{schema: "LogLevel", example: `{"level":"debug"}`},
		codes:       []status.Code{status.InvalidValue}},
	{operation: "listSessions", method: http.MethodGet, path: admin.SessionsPath, daemons: byBoth,
		summary:  "Open sessions, oldest first, and how much IO they have done",
		response: content{schema: "SessionList", example: exampleSessions}, busy: true},
	{operation: "endSession", method: http.MethodDelete, path: admin.SessionsPath + "/{id}",
		daemons: byBoth, summary: "End a session at once",
		description: "Its peer may open another one.",
		parameters: []routeParameter{{name: "id", in: "path", kind: "integer",
			text: "Number of the session.", example: 7}},
		codes: []status.Code{status.InvalidValue, status.NotFound}},
	{operation: "startTrace", method: http.MethodPost, path: admin.TracePath, daemons: byBoth,
		summary: "Begin to record the IOs that clients sample, and forget former records"},
	{operation: "stopTrace", method: http.MethodDelete, path: admin.TracePath, daemons: byBoth,
		summary: "End a trace, and return what it has recorded for Chrome's trace viewer",
		response: content{schema: "Trace",
			example: `{"traceEvents":[],"displayTimeUnit":"ns"}`}, busy: true},
	{operation: "reload", method: http.MethodPost, path: admin.ReloadPath, daemons: byBoth,
		summary:     "Read the configuration and the certificates again, as SIGHUP does",
		description: "A reload that fails is a reply with error and code.",
		response:    content{schema: "Reload", example: exampleReload}, busy: true},
	{operation: "getDrain", method: http.MethodGet, path: admin.DrainPath, daemons: byRelay,
		summary:  "Progress of a drain",
		response: content{schema: "Drain", example: exampleDrain}},
	{operation: "drain", method: http.MethodPost, path: admin.DrainPath, daemons: byRelay,
		summary:     "Reject new sessions",
		description: "The reply does not wait for open sessions.",
		response:    content{schema: "Drain", example: exampleDrain}},
	{operation: "resume", method: http.MethodDelete, path: admin.DrainPath, daemons: byRelay,
		summary:  "Accept new sessions again",
		response: content{schema: "Drain", example: `{"draining":false,"sessions":2}`}},

	{operation: "listChannels", method: http.MethodGet, path: admin.ChannelsPath,
		daemons: byRelay,
		summary: "Channels with all their settings, and whether clients can connect",
		response: content{schema: "ChannelList",
			example: `{"schema":"zc-relay.channels/1","channels":[` + exampleChannel + `]}`},
		busy: true},
	{operation: "addChannel", method: http.MethodPost, path: admin.ChannelsPath,
		daemons: byRelay, summary: "Serve another channel, and keep it over restarts",
		description: "A channel that clients cannot reach yet is added even so, and its state " +
			"says so.",
		parameters: []routeParameter{waitParameter},
		request:    content{schema: "NewChannel", example: exampleNewChannel},
		response:   content{schema: "Channel", example: exampleChannel},
		codes: []status.Code{status.InvalidValue, status.AlreadyExist, status.InUse,
			status.NotSupported, status.InProgress}, busy: true},
	{operation: "removeChannel", method: http.MethodDelete, path: admin.ChannelsPath + "/{name}",
		daemons: byRelay, summary: "Drain and end the sessions of a channel, and forget it",
		parameters: []routeParameter{channelParameter, waitParameter, forceParameter},
		codes: []status.Code{status.InvalidValue, status.NotFound, status.BadState, status.InUse,
			status.InProgress}, busy: true},
	{operation: "moveChannel", method: http.MethodPost,
		path: admin.ChannelsPath + "/{name}/target", daemons: byRelay,
		summary:     "Give a channel other targets",
		description: "Sessions at former targets are drained and ended; clients reopen them.",
		parameters:  []routeParameter{channelParameter, waitParameter, forceParameter},
		request:     content{schema: "ChannelTargets", example: `{"target":"10.0.0.6:7470"}`},
		response:    content{schema: "Channel", example: exampleChannel},
		codes: []status.Code{status.InvalidValue, status.NotFound, status.BadState, status.InUse,
			status.InProgress}, busy: true},
	{operation: "limitChannel", method: http.MethodPost,
		path: admin.ChannelsPath + "/{name}/qos", daemons: byRelay,
		summary:     "Change the rate limits of a channel, at once and for open sessions, too",
		description: "What the document does not have stays as it is.",
		parameters:  []routeParameter{channelParameter, waitParameter},
		request:     content{schema: "ChannelQoS", example: `{"channel":{"iops":"5000"}}`},
		response:    content{schema: "Channel", example: exampleChannel},
		codes: []status.Code{status.InvalidValue, status.NotFound, status.BadState, status.InUse,
			status.InProgress}, busy: true},

	{operation: "listVolumes", method: http.MethodGet, path: admin.VolumesPath,
		daemons: byTarget, summary: "Volumes with their sessions, owners, and rights",
		response: content{schema: "VolumeList",
			example: `{"schema":"zc-relay.volumes/1","volumes":[` + exampleVolume + `]}`},
		busy: true},
	{operation: "addVolume", method: http.MethodPost, path: admin.VolumesPath,
		daemons: byTarget, summary: "Open a volume, and serve it until the target ends",
		parameters: []routeParameter{waitParameter},
		request: content{schema: "NewVolume",
			example: `{"name":"disk","backend":"memory:1GiB","block_size_bytes":4096}`},
		response: content{schema: "Volume", example: exampleVolume},
		codes: []status.Code{status.InvalidValue, status.AlreadyExist, status.InUse,
			status.InProgress, status.NotPermitted, status.NotSupported}, busy: true},
	{operation: "removeVolume", method: http.MethodDelete, path: admin.VolumesPath + "/{name}",
		daemons: byTarget, summary: "Drain and end the sessions of a volume, and close it",
		parameters: []routeParameter{volumeParameter, waitParameter, forceParameter},
		codes: []status.Code{status.InvalidValue, status.NotFound, status.InUse,
			status.InProgress}, busy: true},
	{operation: "resizeVolume", method: http.MethodPost, path: admin.VolumesPath + "/{name}/size",
		daemons: byTarget, summary: "Change the size of a volume while clients use it",
		parameters: []routeParameter{volumeParameter, waitParameter},
		request: content{schema: "VolumeSize",
			example: `{"size_bytes":2147483648,"shrink":false}`},
		response: content{schema: "Volume", example: exampleVolume},
		codes: []status.Code{status.InvalidValue, status.NotFound, status.BadState, status.InUse,
			status.NotSupported, status.InProgress}, busy: true},
	{operation: "preemptHolder", method: http.MethodDelete,
		path: admin.VolumesPath + "/{name}/holders/{holder}", daemons: byTarget,
		summary: "End all sessions of a client that has a volume open",
		parameters: []routeParameter{volumeParameter, {name: "holder", in: "path", kind: "string",
			text: "holder_id of the volume or the session.", example: "4fb2c6d0a1e39875"},
			waitParameter},
		codes: []status.Code{status.InvalidValue, status.NotFound, status.InUse,
			status.InProgress}, busy: true},

	{operation: "listProfiles", method: http.MethodGet, path: admin.ProfilesPath + "{$}",
		daemons: byBoth, summary: "Page that lists the profiles of the Go runtime",
		response: content{mediaType: "text/html"}, busy: true},
	{operation: "getCommandLine", method: http.MethodGet,
		path: admin.ProfilesPath + admin.ProfileCommand, daemons: byBoth,
		summary:  "Command line of the daemon, its words separated by zero bytes",
		response: content{mediaType: textPlain}, busy: true},
	{operation: "profileCPU", method: http.MethodGet, path: admin.ProfilesPath + admin.ProfileCPU,
		daemons: byBoth, summary: "Profile of the CPU, for go tool pprof",
		parameters: []routeParameter{secondsParameter},
		response:   content{mediaType: profileType}, codes: []status.Code{status.InvalidValue},
		busy: true},
	{operation: "getSymbols", method: http.MethodGet,
		path: admin.ProfilesPath + admin.ProfileSymbols, daemons: byBoth,
		summary:  "Names of program counters, for go tool pprof",
		response: content{mediaType: textPlain}, busy: true},
	{operation: "traceExecution", method: http.MethodGet,
		path: admin.ProfilesPath + admin.ProfileTrace, daemons: byBoth,
		summary:    "Execution trace, for go tool trace",
		parameters: []routeParameter{secondsParameter},
		response:   content{mediaType: profileType}, codes: []status.Code{status.InvalidValue},
		busy: true},
	{operation: "getProfile", method: http.MethodGet, path: admin.ProfilesPath + "{profile}",
		daemons: byBoth, summary: "Profile of the Go runtime, for go tool pprof",
		parameters: []routeParameter{{name: "profile", in: "path", kind: "string",
			text: "Name of the profile, as in package runtime/pprof.", example: "goroutine"}},
		response: content{mediaType: profileType}, busy: true},
}

// handle serves the route of an operation.
func (a *Admin) handle(operation string, handler http.Handler) {
	r := routeOf(operation)
	if r.busy {
		handler = limitRequests(maxRequestsAtATime, handler)
	}
	a.mux.Handle(r.pattern(), handler)
}

// routeOf returns the route of an operation.
func routeOf(operation string) *route {
	i := slices.IndexFunc(routes, func(r route) bool { return r.operation == operation })
	if i < 0 {
		panic(fmt.Sprintf("no route is called %q", operation))
	}
	return &routes[i]
}

// pattern returns the pattern of http.ServeMux.
func (r *route) pattern() string { return r.method + " " + r.path }
