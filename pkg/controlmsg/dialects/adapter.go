// SPDX-License-Identifier: Apache-2.0

package dialects

import (
	"context"
	"crypto/rand"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Adapter is what the Handlers of a relay and of a target share, which embed it. A Handler turns
// the requests of an application into those of our own protocol, which a session carries out.
type Adapter struct {
	config    AdapterConfig
	responder *Responder
	epoch     uint64
	// The applications know no identity of a client: each session is one of its own.
	instance, owner [16]byte
}

// AdapterConfig configures an Adapter. Everything is required.
type AdapterConfig struct {
	// ResponderConfig has the Handler that embeds the Adapter. The Adapter itself sets OnFailure.
	ResponderConfig
	Transport controlmsg.Transport
	// Drain lets what is in flight complete, and returns how many IOs have not when ctx ends.
	Drain func(ctx context.Context) (unfinished int)
	// Stop ends the data path, which is drained.
	Stop   func(ctx context.Context) error
	Logger *zap.Logger
}

// NewAdapter begins a conversation on a transport, which stays the caller's.
func NewAdapter(config AdapterConfig) *Adapter {
	config.OnFailure = func(request string, err error) {
		config.Logger.Warn("request failed", zap.String("request", request), zap.Error(err))
	}
	a := &Adapter{config: config,
		responder: NewResponder(config.Transport, config.ResponderConfig)}
	_, _ = rand.Read(a.instance[:]) // never fails
	_, _ = rand.Read(a.owner[:])
	return a
}

// Version returns Responder.Version.
func (a *Adapter) Version() Version { return a.responder.Version() }

// Serve carries out the peer's requests until it shuts down, which returns nil, or something fails.
// The requests go to the Handler of the configuration.
func (a *Adapter) Serve(ctx context.Context, _ controlmsg.Handler) error {
	return a.responder.Serve(ctx)
}

// Leave does nothing: the protocol has no message for the reason.
func (a *Adapter) Leave(error) {}

// Configure carries out an init_storage of an initiator with the given memory by configure. Because
// initiators of 3.x do not say what they need, it tries again with smaller buffers while configure
// fails for lack of memory.
func (a *Adapter) Configure(m *InitStorage, memory controlmsg.Export,
	volume *controlmsg.OpenVolumeReply, configure func(*controlmsg.ConfigureDataPath) error) error {
	queues, bufferSize, err := m.size(a.Version(), memory.Length, volume)
	if err != nil {
		return err
	}
	request := &controlmsg.ConfigureDataPath{
		ClientInstance: a.instance, Owner: a.owner, Client: a.Version().String() + " initiator",
		QueueCount: queues, Depth: m.Count, BufferSize: bufferSize, Export: memory,
	}
	for {
		a.epoch++
		request.Epoch = a.epoch
		err := controlmsg.Validate(request)
		if err == nil {
			err = configure(request)
		}
		smaller := request.BufferSize / 2 / volume.BlockSize * volume.BlockSize
		if status.CodeOf(err) != status.NoMemory || m.BufferSize > 0 || smaller == 0 {
			return err
		}
		request.BufferSize = smaller
	}
}

// initiatorBufferSize is the largest IO in bytes that a 3.x initiator may request, unless a block
// of the volume is larger, or a limit lower.
const initiatorBufferSize = 128 << 10

// size returns the number of queues and the largest IO in bytes that a request of a version implies
// for an initiator's memory of a length and for a volume. Initiators of 3.x do not say how large
// their IOs are; those of 2.10 do not say how many queues they have.
func (m *InitStorage) size(v Version, length uint64, volume *controlmsg.OpenVolumeReply) (
	queues, bufferSize uint32, err error) {
	if v != DOCA2_10 {
		return m.Cores, min(max(initiatorBufferSize, volume.BlockSize),
			volume.MaxBufferSize/volume.BlockSize*volume.BlockSize), nil
	}
	// Every thread has Count buffers, and the memory consists of them.
	perQueue := uint64(m.Count) * uint64(m.BufferSize)
	if perQueue == 0 || length%perQueue != 0 || length/perQueue > controlmsg.MaxQueues {
		return 0, 0, status.Errorf(status.InvalidValue, "memory of %d bytes does not consist of "+
			"the buffers of up to %d threads, %d of %d bytes each", length, controlmsg.MaxQueues,
			m.Count, m.BufferSize)
	}
	if length > volume.Size {
		return 0, 0, status.Errorf(status.TooBig, "the initiator uses its memory's %d bytes of "+
			"the storage, but the volume has %d", length, volume.Size)
	}
	return uint32(length / perQueue), m.BufferSize, nil
}

// StopStorage completes what is in flight, and ends the data path.
func (a *Adapter) StopStorage(ctx context.Context) error {
	draining, cancel := context.WithTimeout(ctx, a.config.Timeout)
	defer cancel()
	if n := a.config.Drain(draining); n > 0 {
		return status.Errorf(status.TimeOut, "%d IOs have not completed", n)
	}
	return a.config.Stop(ctx)
}
