// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/rdmadevice"
	"github.com/zc-relay/zc-relay/internal/rdmadevice/sysfstest"
	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/nbd"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryMetricIsDefinedAsPrometheusWantsIt(t *testing.T) {
	seen := make(map[string]bool)
	for _, d := range Definitions() {
		if seen[d.Name] {
			t.Errorf("%s is defined twice", d.Name)
		}
		seen[d.Name] = true
		if counter := strings.HasSuffix(d.Name, "_total"); counter != (d.Type == Counter) {
			t.Errorf("%s is a %s", d.Name, d.Type)
		}
		if !strings.HasSuffix(d.Help, ".") {
			t.Errorf("%s has the help %q", d.Name, d.Help)
		}
	}
	for _, want := range []string{"zc_relay_io_total", "zc_target_io_latency_seconds",
		"zc_relay_late_wakeups_total"} {
		if !seen[want] {
			t.Errorf("%s is not defined", want)
		}
	}
}

type fakeRelay []relay.ChannelStatus

func (f fakeRelay) Channels() []relay.ChannelStatus { return f }
func (f fakeRelay) Workers() []*datapath.Worker     { return nil }

func TestChannelsAreToldApart(t *testing.T) {
	collector := NewRelayCollector(fakeRelay{
		{FullName: "a", ChannelID: relay.ChannelID{Name: "a"}, Counters: &datapath.CounterSet{},
			Sessions: 1, SessionsAccepted: 5, OpenSessions: []relay.SessionStatus{
				{Queues: []relay.QueueStatus{{Transport: "shm"}, {Transport: "iwarp"}, {}}}}},
		{FullName: "b", ChannelID: relay.ChannelID{Name: "b"}, Counters: &datapath.CounterSet{},
			OpenSessions: []relay.SessionStatus{{Unreleased: true}}},
		// A session of a channel that was removed before it was added again.
		{FullName: "a", ChannelID: relay.ChannelID{Name: "a"}, Counters: &datapath.CounterSet{},
			Sessions: 1, OpenSessions: []relay.SessionStatus{
				{Queues: []relay.QueueStatus{{Transport: "shm"}, {Transport: "shm"}}}}},
	}, Options{})
	want := `
# HELP zc_relay_connected_queues Queues of open sessions that are connected to the target, by RDMA transport.
# TYPE zc_relay_connected_queues gauge
zc_relay_connected_queues{channel="a",transport="iwarp"} 1
zc_relay_connected_queues{channel="a",transport="shm"} 3
# HELP zc_relay_sessions Sessions that are open now.
# TYPE zc_relay_sessions gauge
zc_relay_sessions{channel="a"} 2
zc_relay_sessions{channel="b"} 0
# HELP zc_relay_sessions_unreleased Sessions that have ended and could not be released yet.
# TYPE zc_relay_sessions_unreleased gauge
zc_relay_sessions_unreleased{channel="a"} 0
zc_relay_sessions_unreleased{channel="b"} 1
`
	if err := testutil.CollectAndCompare(collector, strings.NewReader(want),
		"zc_relay_connected_queues", "zc_relay_sessions", "zc_relay_sessions_unreleased"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(collector); err != nil || len(problems) > 0 {
		t.Errorf("lint finds %v, error %v", problems, err)
	}
}

func TestTheStateOfAChannelAndEachOfItsTargetsAreExported(t *testing.T) {
	collector := NewRelayCollector(fakeRelay{{FullName: "a",
		ListenStatus: relay.ListenStatus{State: "waiting"}, Counters: &datapath.CounterSet{},
		Targets: []relay.TargetStatus{
			{Address: netip.MustParseAddrPort("10.0.0.5:7470"),
				Link: relay.LinkStatus{State: "ready", Connects: 1}},
			{Address: netip.MustParseAddrPort("10.0.0.6:7470"), Link: relay.LinkStatus{
				State: "waiting", NextAttempt: new(time.UnixMilli(1700000000500)), Connects: 2,
				Losses: 2, FailuresByCode: map[status.Code]uint64{
					status.NotConnected: 3, status.NotFound: 1}}},
			{Address: netip.MustParseAddrPort("10.0.0.7:7470"),
				Link: relay.LinkStatus{State: "waiting"}, Deserted: true},
		}}}, Options{})
	want := `
# HELP zc_relay_channel_state Always 1; the label says whether a channel is opening, listening, waiting, or retiring.
# TYPE zc_relay_channel_state gauge
zc_relay_channel_state{channel="a",state="waiting"} 1
# HELP zc_relay_target_attempt_failures_total Failed attempts to connect to a target, by the code of the failure; absent for a code that has not occurred.
# TYPE zc_relay_target_attempt_failures_total counter
zc_relay_target_attempt_failures_total{channel="a",code="NOT_CONNECTED",target="10.0.0.6:7470"} 3
zc_relay_target_attempt_failures_total{channel="a",code="NOT_FOUND",target="10.0.0.6:7470"} 1
# HELP zc_relay_target_losses_total Times that the standing connection to a target was lost.
# TYPE zc_relay_target_losses_total counter
zc_relay_target_losses_total{channel="a",target="10.0.0.5:7470"} 0
zc_relay_target_losses_total{channel="a",target="10.0.0.6:7470"} 2
zc_relay_target_losses_total{channel="a",target="10.0.0.7:7470"} 0
# HELP zc_relay_target_next_attempt_timestamp_seconds Unix time at which the relay connects to a target again; absent unless that is scheduled.
# TYPE zc_relay_target_next_attempt_timestamp_seconds gauge
zc_relay_target_next_attempt_timestamp_seconds{channel="a",target="10.0.0.6:7470"} 1.7000000005e+09
# HELP zc_relay_target_usable 1 if the target serves or could take over (ready, stand-by), else 0. Absent for an address at which nobody listens because another one leads to the target.
# TYPE zc_relay_target_usable gauge
zc_relay_target_usable{channel="a",target="10.0.0.5:7470"} 1
zc_relay_target_usable{channel="a",target="10.0.0.6:7470"} 0
`
	if err := testutil.CollectAndCompare(collector, strings.NewReader(want),
		"zc_relay_channel_state",
		"zc_relay_target_attempt_failures_total", "zc_relay_target_losses_total",
		"zc_relay_target_next_attempt_timestamp_seconds", "zc_relay_target_usable"); err != nil {
		t.Error(err)
	}
}

type fakeTarget []target.VolumeStatus

func (f fakeTarget) Volumes() []target.VolumeStatus  { return f }
func (f fakeTarget) Sessions() int                   { return 0 }
func (f fakeTarget) ConnectedQueues() map[string]int { return map[string]int{"shm": 2} }
func (f fakeTarget) SessionsTotal() uint64           { return 0 }
func (f fakeTarget) SessionsPostponed() uint64       { return 0 }
func (f fakeTarget) Workers() []*datapath.Worker     { return nil }

func TestFailuresOfVolumesAreCountedByCause(t *testing.T) {
	collector := NewTargetCollector(fakeTarget{
		{Name: "disk", State: volume.Failed, Counters: &datapath.CounterSet{},
			Failures: []volume.Failure{{Operation: iomsg.OpWrite, Cause: "ENOSPC", Count: 3},
				{Operation: iomsg.OpFlush, Cause: "volume_failed", Count: 1},
				{Operation: iomsg.OpRead, Cause: "EL2HLT", Count: 2},
				{Operation: iomsg.OpRead, Cause: "other", Count: 5}}},
		{Name: "late", State: volume.Opening},
		{Name: "ram", State: volume.Serving, Counters: &datapath.CounterSet{}},
	}, Options{})
	failures := counts(t, collector, "zc_target_volume_failures_total")
	for series, want := range map[string]float64{
		"ENOSPC write disk": 3, "volume_failed flush disk": 1, "other read disk": 7,
		"EIO trim ram": 0, "injected write ram": 0,
	} {
		if got, found := failures[series]; !found || got != want {
			t.Errorf("%s: %v failures (there: %t), want %v", series, got, found, want)
		}
	}
	if n := len(failures); n != 2*6*len(failureCauses) {
		t.Errorf("there are %d series of failures", n)
	}
	want := `
# HELP zc_target_connected_queues Queues of open sessions that are connected to their relay, by RDMA transport.
# TYPE zc_target_connected_queues gauge
zc_target_connected_queues{transport="shm"} 2
# HELP zc_target_volume_state Always 1; the label says whether a volume is opening, serving, stand-by, failed, or closed.
# TYPE zc_target_volume_state gauge
zc_target_volume_state{state="failed",volume="disk"} 1
zc_target_volume_state{state="opening",volume="late"} 1
zc_target_volume_state{state="serving",volume="ram"} 1
`
	if err := testutil.CollectAndCompare(collector, strings.NewReader(want),
		"zc_target_connected_queues", "zc_target_volume_state"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(collector); err != nil || len(problems) > 0 {
		t.Errorf("lint finds %v, error %v", problems, err)
	}
}

// counts returns the values of a metric by the values of its labels.
func counts(t *testing.T, collector prometheus.Collector, name string) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.Metric {
			var labels []string
			for _, label := range m.Label {
				labels = append(labels, label.GetValue())
			}
			all[strings.Join(labels, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return all
}

// A rate needs two samples: a counter that appears with its first failures raises no alert.
func TestFailuresAreCountedFromZeroOn(t *testing.T) {
	ofRelay := counts(t, NewRelayCollector(fakeRelay{{FullName: "a",
		Counters: &datapath.CounterSet{}}}, Options{}),
		"zc_relay_io_failures_total")
	ofTarget := counts(t, NewTargetCollector(fakeTarget{{Name: "disk",
		Counters: &datapath.CounterSet{}}}, Options{}), "zc_target_io_failures_total")
	gateway := counts(t, NewNBDCollector(fakeGateway{}), "zc_relay_nbd_requests_total")
	for series, all := range map[string]map[string]float64{
		"a IO_FAILED": ofRelay, "a TIME_OUT": ofRelay, "a CONNECTION_RESET": ofRelay,
		"a OTHER":        ofRelay,
		"IO_FAILED disk": ofTarget, "OTHER disk": ofTarget,
		"read EIO x": gateway, "trim ENOSPC x": gateway, "flush ESHUTDOWN x": gateway,
	} {
		if n, found := all[series]; !found || n != 0 {
			t.Errorf("%s is %v (there: %t) before the first failure; there are %v", series, n,
				found, all)
		}
	}
	if n := gateway["write ENOSPC x"]; n != 7 {
		t.Errorf("the gateway's failures are %v", gateway)
	}
	if held := counts(t, NewNBDCollector(fakeGateway{}),
		"zc_relay_nbd_quarantined_bytes"); held["x"] != 4096 {
		t.Errorf("the memory in quarantine is %v", held)
	}
}

type fakeGateway struct{}

func (fakeGateway) Quarantined() map[string]uint64 { return map[string]uint64{"x": 4096} }
func (fakeGateway) Status() []nbd.ExportStatus {
	io := blockio.IOStatus{BytesRead: 512, InFlight: 2, Requests: []blockio.RequestCount{
		{Command: blockio.Read, Error: blockio.Success, Count: 1},
		{Command: blockio.Write, Error: blockio.NoSpace, Count: 7}}}
	return []nbd.ExportStatus{{Name: "x", IOStatus: io,
		Clients: []nbd.ClientStatus{{Client: "10.0.0.7", IOStatus: io}}}}
}

type fakeDaemon struct {
	failed  bool
	pending int
}

func (f fakeDaemon) ReloadFailed() bool  { return f.failed }
func (f fakeDaemon) RestartPending() int { return f.pending }

func TestAFailedReloadAndAPendingRestartAreExported(t *testing.T) {
	for _, c := range []struct {
		daemon           fakeDaemon
		success, pending float64
	}{
		{fakeDaemon{}, 1, 0},
		{fakeDaemon{failed: true, pending: 2}, 0, 2},
	} {
		collector := NewDaemonCollector(c.daemon)
		success := counts(t, collector, "zc_reload_success")[""]
		pending := counts(t, collector, "zc_restart_pending_settings")[""]
		if success != c.success || pending != c.pending {
			t.Errorf("%+v: success %v, pending %v", c.daemon, success, pending)
		}
	}
}

// collectLatency returns the histogram of a distribution after it has passed
// through a registry, which checks it.
func collectLatency(t *testing.T, latency *datapath.Latency) *dto.Histogram {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(oneMetric{newLatencyHistogram(prometheus.NewDesc("x_seconds", "X.",
		[]string{"l"}, nil), []string{"l"}, []string{"v"}, latency)})
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("gathered %v, error %v", families, err)
	}
	return families[0].Metric[0].Histogram
}

type oneMetric struct{ metric prometheus.Metric }

func (o oneMetric) Describe(out chan<- *prometheus.Desc) { out <- o.metric.Desc() }
func (o oneMetric) Collect(out chan<- prometheus.Metric) { out <- o.metric }

// nativeBuckets decodes spans and differences to counts by native index.
func nativeBuckets(h *dto.Histogram) map[int32]int64 {
	buckets := make(map[int32]int64)
	var index int32
	var count int64
	deltas := h.PositiveDelta
	for _, span := range h.PositiveSpan {
		index += span.GetOffset()
		for range span.GetLength() {
			count += deltas[0]
			deltas = deltas[1:]
			buckets[index] = count
			index++
		}
	}
	return buckets
}

func TestALatencyHistogramIsNativeAndClassicAtOnce(t *testing.T) {
	latency := datapath.Latency{SumNs: 3_000_000_000}
	latency.Buckets[0] = 3                         // up to 2^-20 s
	latency.Buckets[1] = 5                         // the native index -159
	latency.Buckets[2] = 4                         // its neighbour
	latency.Buckets[160] = 7                       // up to 1 s: index 0
	latency.Buckets[datapath.LatencyBuckets-1] = 2 // beyond 64 s: index 49
	h := collectLatency(t, &latency)
	if h.GetSampleCount() != 21 || h.GetSampleSum() != 3 {
		t.Errorf("count %d, sum %v", h.GetSampleCount(), h.GetSampleSum())
	}
	got := nativeBuckets(h)
	want := map[int32]int64{-159: 5, -158: 4, 0: 7, 49: 2}
	if len(got) != len(want) || h.GetZeroCount() != 3 || h.GetSchema() != 3 {
		t.Errorf("native buckets are %v, zero count %d, schema %d", got, h.GetZeroCount(),
			h.GetSchema())
	}
	for index, n := range want {
		if got[index] != n {
			t.Errorf("native bucket %d has %d, want %d", index, got[index], n)
		}
	}
	for _, b := range h.Bucket {
		want := uint64(12)
		switch bound := b.GetUpperBound(); {
		case bound == 1.0/(1<<20):
			want = 3
		case bound >= 1:
			want = 19
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("classic bucket up to %v s has %d, want %d", b.GetUpperBound(),
				b.GetCumulativeCount(), want)
		}
	}
	bounds := make([]float64, len(h.Bucket))
	for i, b := range h.Bucket {
		bounds[i] = b.GetUpperBound()
	}
	if len(bounds) != 27 || !slices.Contains(bounds, 1) || bounds[26] != 64 {
		t.Errorf("classic bounds are %v", bounds)
	}
}

func TestALatencyHistogramWithoutSamplesIsStillNative(t *testing.T) {
	h := collectLatency(t, &datapath.Latency{})
	if len(h.PositiveSpan) != 1 || h.PositiveSpan[0].GetLength() != 0 || h.GetZeroThreshold() == 0 {
		t.Errorf("spans are %v, the zero bucket is %v wide", h.PositiveSpan, h.GetZeroThreshold())
	}
}

func TestDeviceCountersAreCollected(t *testing.T) {
	tree, err := rdmadevice.Open(sysfstest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	collector := NewDeviceCollector(tree, zap.NewNop())
	want := `
# HELP zc_rdma_device_info Always 1; the labels describe the RDMA device as of the start of the daemon.
# TYPE zc_rdma_device_info gauge
zc_rdma_device_info{auxiliary="",board="",device="rxe0",firmware="",netdev="eth0",node_guid="5054:00ff:fe12:3456",pci=""} 1
zc_rdma_device_info{auxiliary="",board="MT_0000000884",device="mlx5_0",firmware="32.41.1000",netdev="p0",node_guid="b83f:d203:00a1:b2c4",pci="0000:03:00.0"} 1
zc_rdma_device_info{auxiliary="mlx5_core.sf.4",board="",device="mlx5_4",firmware="32.41.1000",netdev="",node_guid="b83f:d203:00a1:b2c5",pci="0000:03:00.0"} 1
# HELP zc_rdma_port_active 1 if the port is active, else 0.
# TYPE zc_rdma_port_active gauge
zc_rdma_port_active{device="mlx5_0",port="1"} 1
zc_rdma_port_active{device="mlx5_4",port="1"} 0
zc_rdma_port_active{device="rxe0",port="1"} 1
# HELP zc_rdma_port_received_bytes_total Bytes received, headers included.
# TYPE zc_rdma_port_received_bytes_total counter
zc_rdma_port_received_bytes_total{device="mlx5_0",port="1"} 4000
# HELP zc_rdma_scrape_success 1 if all RDMA devices could be read, else 0. Machines without any have 1.
# TYPE zc_rdma_scrape_success gauge
zc_rdma_scrape_success 1
`
	if err := testutil.CollectAndCompare(collector, strings.NewReader(want),
		"zc_rdma_device_info", "zc_rdma_port_active", "zc_rdma_port_received_bytes_total",
		"zc_rdma_scrape_success"); err != nil {
		t.Error(err)
	}
}

// Without the label of queues, the sums are there from the start.
func TestQueuesCanBeLeftOut(t *testing.T) {
	channel := relay.ChannelStatus{FullName: "a", Counters: &datapath.CounterSet{},
		Clients: []datapath.ClientCounts{{Client: "bench", QueueCounts: &datapath.QueueCounts{}}}}
	for _, c := range []struct {
		options Options
		want    string
	}{{Options{Queues: true}, ""}, {Options{}, "a SUCCESS read"}} {
		collector := NewRelayCollector(fakeRelay{channel}, c.options)
		_, isThere := counts(t, collector, "zc_relay_io_total")["a SUCCESS read"]
		if isThere != (c.want != "") {
			t.Errorf("with %+v, the sum over all queues is there: %t", c.options, isThere)
		}
		clients := counts(t, collector, "zc_relay_client_io_bytes_total")
		if n, isThere := clients["a bench read"]; !isThere || n != 0 || len(clients) != 2 {
			t.Errorf("the clients have moved %v", clients)
		}
		if problems, err := testutil.CollectAndLint(collector); err != nil || len(problems) > 0 {
			t.Errorf("lint finds %v, error %v", problems, err)
		}
	}
}
