// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"crypto/rand"
	"encoding/hex"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Export is memory that a Server hands out.
type Export struct {
	Descriptor
	// Source is the memory.
	Source Source
	// Users may import the memory, besides root and the user of this process.
	Users []uint32

	revoking  chan struct{} // closed when the export ends
	importers sync.WaitGroup
}

// Source supplies exported memory. A Server calls it on goroutines of its own.
type Source interface {
	// File returns a descriptor of a file that holds the memory, and the memory's offset in it. The
	// server closes the descriptor. It is -1 if importers can only reach the memory through the
	// address space of this process.
	File() (descriptor int, offset uint64)
	// Patience returns how long Remove waits for an importer to let the memory go.
	Patience() time.Duration
}

// Attendant is a Source that importers ask for more than memory.
type Attendant interface {
	// Attend answers an importer. It returns when the importer ends the connection or answers the
	// revocation, which is one byte each way.
	Attend(c *net.UnixConn)
}

// maxImporters bounds the connections of a Server.
const maxImporters = 256

// Server is the broker of a process. It listens while anything is exported. The zero value is ready
// to use, by any goroutine.
type Server struct {
	mu       sync.Mutex
	byID     map[ID]*Export
	name     string // of the socket
	listener *net.UnixListener
	serving  chan struct{} // closed when the listener's goroutines have ended
	// unadmitted are connections that have not said yet what they want to import.
	unadmitted map[*net.UnixConn]struct{}
}

// Add hands out memory from now on. It sets the ID and the name in the descriptor.
func (s *Server) Add(x *Export) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		if err := s.listen(); err != nil {
			return err
		}
	}
	if s.byID == nil {
		s.byID = make(map[ID]*Export)
	}
	_, _ = rand.Read(x.ID[:]) // never fails
	x.Name, x.revoking = s.name, make(chan struct{})
	s.byID[x.ID] = x
	return nil
}

func (s *Server) listen() error {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	s.name = "zc-libdoca-" + hex.EncodeToString(random[:])
	listener, err := net.ListenUnix(Network, &net.UnixAddr{Name: "@" + s.name})
	if err != nil {
		return status.Errorf(status.OperatingSystem, "serve exported memory: %w", err)
	}
	s.listener, s.serving = listener, make(chan struct{})
	go s.serve(listener, s.serving)
	return nil
}

// Find returns the export with an ID, or nil.
func (s *Server) Find(id ID) *Export {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// Remove ends an export. When it returns, importers have let the memory go, or have not answered.
func (s *Server) Remove(x *Export) {
	s.mu.Lock()
	delete(s.byID, x.ID)
	close(x.revoking)
	listener, serving := s.listener, s.serving
	last := len(s.byID) == 0
	if last {
		s.listener = nil
		for c := range s.unadmitted { // nobody waits for them
			_ = c.SetReadDeadline(time.Unix(0, 1))
		}
	}
	s.mu.Unlock()
	x.importers.Wait()
	if last && listener != nil {
		_ = listener.Close()
		<-serving
	}
}

func (s *Server) serve(listener *net.UnixListener, done chan<- struct{}) {
	defer close(done)
	var running sync.WaitGroup
	defer running.Wait()
	free := make(chan struct{}, maxImporters)
	for {
		free <- struct{}{}
		c, err := listener.AcceptUnix()
		if err != nil {
			return // it is closed
		}
		running.Go(func() {
			s.serveImporter(c)
			<-free
		})
	}
}

// serveImporter serves one import until either side ends it.
func (s *Server) serveImporter(c *net.UnixConn) {
	defer c.Close()
	x, err := s.admit(c)
	if x != nil {
		defer x.importers.Done()
	}
	reply := Reply{Code: status.CodeOf(err)}
	var rights []byte
	if err == nil {
		descriptor, offset := x.Source.File()
		reply.Access, reply.Address, reply.Length, reply.Offset = x.Access, x.Address, x.Length,
			offset
		if descriptor >= 0 {
			rights = unix.UnixRights(descriptor)
			defer func() { _ = unix.Close(descriptor) }()
		}
	}
	_ = c.SetDeadline(time.Now().Add(Timeout))
	if _, _, err := c.WriteMsgUnix(reply.Encode(), rights, nil); err != nil || x == nil {
		return
	}
	_ = c.SetDeadline(time.Time{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if attendant, is := x.Source.(Attendant); is {
			attendant.Attend(c)
			return
		}
		_, _ = c.Read(make([]byte, 1)) // the importer's end, or its answer to the revocation
	}()
	select {
	case <-ended:
	case <-x.revoking:
		_ = c.SetDeadline(time.Now().Add(x.Source.Patience()))
		_, _ = c.Write([]byte{1})
		<-ended
	}
	_ = c.Close()
	<-ended
}

// admit reads the ID that an importer asks for, and counts the importer.
func (s *Server) admit(c *net.UnixConn) (*Export, error) {
	credentials, err := Peer(c)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.unadmitted == nil {
		s.unadmitted = make(map[*net.UnixConn]struct{})
	}
	s.unadmitted[c] = struct{}{}
	_ = c.SetDeadline(time.Now().Add(Timeout))
	if s.listener == nil {
		_ = c.SetReadDeadline(time.Unix(0, 1))
	}
	s.mu.Unlock()
	var id ID
	_, err = io.ReadFull(c, id[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unadmitted, c)
	if err != nil {
		return nil, err
	}
	x := s.byID[id]
	if x == nil {
		return nil, status.Errorf(status.NotFound, "the memory is not exported")
	}
	own := uint32(os.Geteuid())
	if user := credentials.Uid; user != 0 && user != own && !slices.Contains(x.Users, user) {
		return nil, status.Errorf(status.NotPermitted, "user %d cannot import memory of user %d",
			user, own)
	}
	x.importers.Add(1)
	return x, nil
}
