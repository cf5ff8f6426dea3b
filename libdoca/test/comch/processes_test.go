// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package comch_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts/contextstest"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/dma"
	dmadoca "github.com/zc-relay/zc-relay/pkg/dma/doca"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// These make the test binary run TestHostProcess or TestDPUProcess as the other side of a test.
const (
	hostDirectory = "COMCH_DOCA_TEST_DIRECTORY"
	dpuDirectory  = "COMCH_DOCA_TEST_DPU_DIRECTORY"
)

// These make the two sides of TestConformanceOfDPUAndHost meet, and use devices of hardware.
const (
	suiteListen     = "COMCH_DOCA_TEST_LISTEN"      // where the DPU waits for the host
	suiteHost       = "COMCH_DOCA_TEST_DPU"         // where the host finds the DPU
	suiteDevice     = "COMCH_DOCA_TEST_DEVICE"      // of the DPU
	suiteHostDevice = "COMCH_DOCA_TEST_HOST_DEVICE" // both its representor and the host's device
)

const (
	processMessages = 200
	processReceives = 8
	sharedLength    = 1 << 16
)

// TestHostProcess is the host: it exports memory, and sends back what it receives until it gets a
// control message.
func TestHostProcess(t *testing.T) {
	directory := os.Getenv(hostDirectory)
	if directory == "" {
		return // it is not a test by itself
	}
	provider := comchdoca.New(comchdoca.Options{Loader: emulateIn(t, directory, libdoca.Config{
		Devices: []libdoca.Device{{PCI: "b1:00.0", Role: libdoca.Host}}})})
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	connection := must[comch.Connection](t)(provider.Connect(ctx,
		comch.ClientConfig{Name: "server"}))
	region := must[*memory.Region](t)(memory.Alloc("host", sharedLength))
	copy(region.Bytes(), "memory of the host")
	blob := must[[]byte](t)(connection.ExportMemory(ctx, region, memory.PCIRead|memory.PCIWrite))
	if err := connection.Send(ctx, blob); err != nil {
		t.Fatal(err)
	}
	path := openPath(ctx, t, connection)
	done := make(chan error, 1)
	go func() {
		_, err := connection.Receive(ctx)
		done <- err
	}()
	for running := true; running; {
		path.poll(func(message []byte) { path.send(ctx, t, message) })
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the DPU has not said that it is done: %v", err)
			}
			running = false
		default:
			runtime.Gosched()
		}
	}
	if got := string(region.Bytes()[100:112]); got != "from the DPU" {
		t.Errorf("the DPU has written %q", got)
	}
	path.close(t)
	if err := errors.Join(connection.Close(), region.Close()); err != nil {
		t.Error(err)
	}
}

func TestTwoProcesses(t *testing.T) {
	d, host := startHost(t)
	d.exchange(t)
	if err := d.connection.Send(d.ctx, []byte("end")); err != nil {
		t.Fatal(err)
	}
	if err := host.Wait(); err != nil {
		t.Error(err)
	}
	d.end(t)
}

func TestAHostThatIsKilledLeavesNothing(t *testing.T) {
	d, host := startHost(t)
	d.exchange(t)
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = host.Wait() // it was killed
	d.end(t)
}

// A host that stands still takes nothing, confirms nothing, and does not end.
func TestAHostThatStandsStillHoldsUpNobody(t *testing.T) {
	d, host := startHost(t)
	d.exchange(t)
	if err := host.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 2 * processReceives { // more than the host has receives for
		if err := d.path.producer.Send([]byte("nobody reads it"), nil); err != nil {
			break
		}
	}
	d.path.producer.Flush()
	for _, object := range []interface{ Close() error }{d.path.producer, d.path.consumer,
		d.connection, d.server} {
		begin := time.Now()
		if err := object.Close(); err != nil {
			t.Errorf("close %T: %v", object, err)
		}
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("closing %T has taken %v", object, took)
		}
	}
	if err := host.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var failure *exec.ExitError
	if err := host.Wait(); !errors.As(err, &failure) || failure.ExitCode() != 1 {
		t.Errorf("the host has ended with %v, not because its connection has ended", err)
	}
}

func TestADPUThatIsKilledLeavesNothingOnTheHost(t *testing.T) {
	directory := t.TempDir()
	provider := comchdoca.New(comchdoca.Options{Loader: emulateIn(t, directory, libdoca.Config{
		Devices: []libdoca.Device{{PCI: "b1:00.0", Role: libdoca.Host}}})})
	process := startProcess(t, "TestDPUProcess", dpuDirectory+"="+directory)
	ctx := testContext(t)
	var connection comch.Connection
	for connection == nil {
		var err error
		connection, err = provider.Connect(ctx, comch.ClientConfig{Name: "server"})
		if err != nil && (!errors.Is(err, status.NotFound) || ctx.Err() != nil) {
			t.Fatal(err)
		}
	}
	path := openPath(ctx, t, connection)
	path.send(ctx, t, []byte("hello"))
	for answer := ""; answer != "hello" && ctx.Err() == nil; {
		path.poll(func(message []byte) { answer = string(message) })
		runtime.Gosched()
	}
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait() // it was killed
	select {
	case <-connection.Done():
	case <-ctx.Done():
		t.Fatal("the connection has not ended")
	}
	if _, err := connection.Receive(ctx); !errors.Is(err, status.NotConnected) {
		t.Errorf("received from a DPU that was killed: %v", err)
	}
	path.close(t)
	if err := connection.Close(); err != nil {
		t.Error(err)
	}
}

// TestDPUProcess is the DPU: it sends back what it receives until it is killed.
func TestDPUProcess(t *testing.T) {
	directory := os.Getenv(dpuDirectory)
	if directory == "" {
		return // it is not a test by itself
	}
	provider := comchdoca.New(comchdoca.Options{Loader: emulateIn(t, directory, libdoca.Config{
		Devices: []libdoca.Device{{PCI: "03:00.0",
			Representors: []libdoca.Representor{{PCI: "b1:00.0"}}}}})})
	ctx := testContext(t)
	server := must[comch.Server](t)(provider.Listen(ctx, comch.ServerConfig{Name: "server"}))
	path := openPath(ctx, t, must[comch.Connection](t)(server.Accept(ctx)))
	for ctx.Err() == nil {
		path.poll(func(message []byte) { path.send(ctx, t, message) })
		runtime.Gosched()
	}
}

// The suite runs on the DPU, and another process does on the host what it asks for. By default both
// are on this machine, over the emulation of libdoca. The environment makes them use the hardware
// of two machines: docs/dev/comch-conformance.md says how.
func TestConformanceOfDPUAndHost(t *testing.T) {
	config := comchtest.Config{Device: os.Getenv(suiteDevice),
		Representor: os.Getenv(suiteHostDevice), HostDevice: os.Getenv(suiteHostDevice)}
	var loader *doca.Loader
	var listener net.Listener
	if address := os.Getenv(suiteListen); address != "" {
		listener = must[net.Listener](t)(net.Listen("tcp", address))
	} else {
		directory := t.TempDir()
		loader = emulateIn(t, directory, libdoca.Config{Devices: []libdoca.Device{
			{PCI: "03:00.0", Representors: []libdoca.Representor{{PCI: "b1:00.0"}}}}})
		listener = must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
		startProcess(t, "TestHostOfTheSuite", suiteHost+"="+listener.Addr().String(),
			hostDirectory+"="+directory)
		if !testkit.IsComplete() {
			config.Groups = []string{"Provider", "Server", "Connect", "Messages", "Consumers", "Ending"}
		}
	}
	peer := must[net.Conn](t)(listener.Accept())
	provider, end := comchtest.WithHost(comchdoca.New(comchdoca.Options{Loader: loader}), peer)
	config.Provider = provider
	comchtest.Run(t, config)
	contextstest.Run(t, config)
	if err := errors.Join(end(), listener.Close()); err != nil {
		t.Error(err)
	}
}

// TestHostOfTheSuite is the host of TestConformanceOfDPUAndHost.
func TestHostOfTheSuite(t *testing.T) {
	address := os.Getenv(suiteHost)
	if address == "" {
		return // it is not a test by itself
	}
	var loader *doca.Loader
	if directory := os.Getenv(hostDirectory); directory != "" {
		loader = emulateIn(t, directory, libdoca.Config{
			Devices: []libdoca.Device{{PCI: "b1:00.0", Role: libdoca.Host}}})
	}
	peer := must[net.Conn](t)(net.Dial("tcp", address))
	provider := comchdoca.New(comchdoca.Options{Loader: loader})
	if err := comchtest.ServeHost(provider, peer); err != nil {
		t.Error(err)
	}
}

// dpu is the side of the test.
type dpu struct {
	ctx        context.Context
	loader     *doca.Loader
	server     comch.Server
	connection comch.Connection
	path       *echoPath
}

func startHost(t *testing.T) (*dpu, *exec.Cmd) {
	directory := t.TempDir()
	d := &dpu{loader: emulateIn(t, directory, libdoca.Config{Devices: []libdoca.Device{
		{PCI: "03:00.0", Representors: []libdoca.Representor{{PCI: "b1:00.0"}}}}})}
	var cancel context.CancelFunc
	d.ctx, cancel = context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	provider := comchdoca.New(comchdoca.Options{Loader: d.loader})
	d.server = must[comch.Server](t)(provider.Listen(d.ctx, comch.ServerConfig{Name: "server"}))
	host := startProcess(t, "TestHostProcess", hostDirectory+"="+directory)
	d.connection = must[comch.Connection](t)(d.server.Accept(d.ctx))
	return d, host
}

// startProcess runs one test of this binary in another process, until the end of this one.
func startProcess(t *testing.T, test string, environment ...string) *exec.Cmd {
	process := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")
	process.Env = append(os.Environ(), environment...)
	var output bytes.Buffer
	process.Stdout, process.Stderr = &output, &output
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		if t.Failed() {
			t.Logf("%s in another process:\n%s", test, output.String())
		}
	})
	return process
}

// exchange uses the host's memory by DMA, and sends messages that come back in order.
func (d *dpu) exchange(t *testing.T) {
	blob := must[[]byte](t)(d.connection.Receive(d.ctx))
	imported, access, err := d.connection.ImportMemory(blob)
	if err != nil {
		t.Fatal(err)
	}
	if imported.Len() != sharedLength || imported.Mapped() ||
		access != memory.PCIRead|memory.PCIWrite {
		t.Errorf("imported %d bytes, mapped: %v, rights: %#x", imported.Len(), imported.Mapped(),
			access)
	}
	d.useMemory(t, imported)
	if err := imported.Close(); err != nil {
		t.Error(err)
	}
	d.path = openPath(d.ctx, t, d.connection)
	next := byte(0)
	for i := range processMessages {
		d.path.send(d.ctx, t, []byte{byte(i)})
		d.path.poll(func(message []byte) {
			if len(message) != 1 || message[0] != next {
				t.Errorf("message %d came back as %v", next, message)
			}
			next++
		})
	}
	for next != processMessages && d.ctx.Err() == nil {
		d.path.poll(func([]byte) { next++ })
		runtime.Gosched()
	}
	if next != processMessages {
		t.Fatalf("%d of %d messages came back", next, processMessages)
	}
}

// useMemory reads and writes memory of the host.
func (d *dpu) useMemory(t *testing.T, imported *memory.Region) {
	device := must[dma.Device](t)(dmadoca.New(dmadoca.Options{Loader: d.loader}).Open("03:00.0"))
	local := must[*memory.Region](t)(memory.Alloc("dpu", 4096))
	copy(local.Bytes()[100:], "from the DPU")
	here := must[dma.Registration](t)(device.Register(local, memory.LocalWrite))
	there := must[dma.Registration](t)(device.Register(imported,
		memory.LocalWrite|memory.PCIRead|memory.PCIWrite))
	engine := must[dma.Engine](t)(device.NewEngine(1))
	for _, c := range []dma.Copy{
		{Destination: dma.Segment{Memory: here, Length: 18},
			Sources: []dma.Segment{{Memory: there, Length: 18}}},
		{Destination: dma.Segment{Memory: there, Offset: 100, Length: 12},
			Sources: []dma.Segment{{Memory: here, Offset: 100, Length: 12}}},
	} {
		if err := engine.Submit(&c); err != nil {
			t.Fatal(err)
		}
		for engine.Poll(make([]*dma.Copy, 1)) == 0 && d.ctx.Err() == nil {
			runtime.Gosched()
		}
		if c.Err != nil {
			t.Error(c.Err)
		}
	}
	if got := string(local.Bytes()[:18]); got != "memory of the host" {
		t.Errorf("the DPU has read %q", got)
	}
	for _, err := range []error{engine.Close(), here.Deregister(), there.Deregister(),
		device.Close(), local.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
}

// end waits for the end of the connection, and closes everything.
func (d *dpu) end(t *testing.T) {
	select {
	case <-d.connection.Done():
	case <-d.ctx.Done():
		t.Fatal("the connection has not ended")
	}
	if err := d.connection.Err(); !errors.Is(err, status.ConnectionReset) {
		t.Errorf("the connection has ended with %v", err)
	}
	if d.path.consumer.State() != progress.Idle || d.path.producer.State() != progress.Idle {
		t.Errorf("consumer is %v, producer is %v", d.path.consumer.State(),
			d.path.producer.State())
	}
	d.path.close(t)
	if err := errors.Join(d.connection.Close(), d.server.Close()); err != nil {
		t.Error(err)
	}
}

// echoPath is a consumer, and a producer for the peer's.
type echoPath struct {
	consumer comch.Consumer
	producer comch.LateProducer
}

func openPath(ctx context.Context, t *testing.T, connection comch.Connection) *echoPath {
	p := &echoPath{consumer: must[comch.Consumer](t)(connection.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: processReceives, MemorySize: processReceives * 64}))}
	for i := range processReceives {
		if err := p.consumer.PostReceive(uint32(i*64), 64, 0); err != nil {
			t.Fatal(err)
		}
	}
	p.consumer.Flush()
	event := must[comch.ConsumerEvent](t)(connection.NextConsumerEvent(ctx))
	producer := must[comch.Producer](t)(connection.NewProducer(ctx, event.ID))
	p.producer = producer.(comch.LateProducer)
	return p
}

func (p *echoPath) poll(see func(message []byte)) {
	p.producer.Poll()
	var received [processReceives]comch.Received
	for _, r := range received[:p.consumer.Poll(received[:])] {
		see(p.consumer.Memory()[r.Offset:][:r.Length])
		_ = p.consumer.PostReceive(r.Offset, 64, 0)
	}
	p.consumer.Flush()
}

func (p *echoPath) send(ctx context.Context, t *testing.T, message []byte) {
	for {
		err := p.producer.Send(message, nil)
		p.producer.Flush()
		switch {
		case err == nil:
			return
		case errors.Is(err, status.NotConnected):
			t.Error(err) // and close everything, for which others wait
			return
		case !errors.Is(err, status.Again) || ctx.Err() != nil:
			t.Fatal(err)
		}
		p.producer.Poll()
		runtime.Gosched()
	}
}

func (p *echoPath) close(t *testing.T) {
	if err := errors.Join(p.producer.Close(), p.consumer.Close()); err != nil {
		t.Error(err)
	}
}
