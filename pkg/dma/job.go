package dma

import (
	"github.com/zc-relay/zc-relay/pkg/status"
)

// JobType is what a job does.
type JobType uint8

// Memcpy copies the data of the source and appends it to that of the
// destination.
const Memcpy JobType = 1

// String returns the lower-case name of the type.
func (t JobType) String() string {
	if t == Memcpy {
		return "memcpy"
	}
	return "invalid"
}

// Job is what a Context can be asked to do.
type Job struct {
	Type JobType
	// Source is the buffer, or the head of a list of buffers, whose data is
	// copied. Its data says how much that is. It may be the source of several
	// jobs at a time.
	Source *Buffer
	// Destination has room behind its data for that of the source. It takes
	// part in one job at a time, and is in no list.
	Destination *Buffer
	// UserData comes back in the event.
	UserData uint64
}

// Event tells the outcome of a job.
type Event struct {
	Type     JobType
	UserData uint64
	// Length is how many bytes were copied; 0 if the job has failed.
	Length uint64
	// Err is nil, or what has gone wrong, with a code of package status. The
	// room of the destination then holds anything.
	Err error
}

// slot is a job in flight.
type slot struct {
	job    Job
	length uint64
	copy   Copy
}

// prepare checks a job as far as that is possible before it is begun, and
// describes it to the engine.
func (c *Context) prepare(s *slot, job Job) error {
	if job.Type != Memcpy {
		return status.Errorf(status.NotSupported, "job type %d is none that a DMA device knows", job.Type)
	}
	if err := checkEnds(job); err != nil {
		return err
	}
	s.job, s.length = job, 0
	s.copy.Sources, s.copy.Err = s.copy.Sources[:0], nil
	for b := job.Source; b != nil; b = b.next {
		if err := c.addSource(s, b); err != nil {
			return err
		}
	}
	return c.setDestination(s, job.Destination)
}

func checkEnds(job Job) error {
	if err := job.Source.alive("source buffer"); err != nil {
		return err
	}
	if err := job.Destination.changeable("destination buffer"); err != nil {
		return err
	}
	if job.Source.references == 0 {
		return status.Errorf(status.InvalidValue, "source buffer is in the middle of a list: submit its head")
	}
	if job.Destination.elements != 1 {
		return status.Errorf(status.InvalidValue, "destination buffer is in a list: only sources can be")
	}
	return nil
}

func (c *Context) addSource(s *slot, b *Buffer) error {
	if b == s.job.Destination {
		return status.Errorf(status.InvalidValue, "a buffer is both source and destination")
	}
	if len(s.copy.Sources) == c.capabilities.MaxBufferListLength {
		return status.Errorf(status.TooBig, "source list has %d buffers, device %s takes %d",
			s.job.Source.elements, c.device.Name(), c.capabilities.MaxBufferListLength)
	}
	if b.dataLength > c.capabilities.MaxBufferSize-s.length {
		return status.Errorf(status.TooBig, "source has more than the %d bytes that device %s can copy in one job",
			c.capabilities.MaxBufferSize, c.device.Name())
	}
	if !b.memory.mayBeSource() {
		return status.Errorf(status.NotPermitted, "source memory was exported without the right to read it (PCIRead)")
	}
	segment, err := c.segment("source", b, b.data, b.dataLength)
	if err != nil {
		return err
	}
	s.length += b.dataLength
	s.copy.Sources = append(s.copy.Sources, segment)
	return nil
}

func (c *Context) setDestination(s *slot, b *Buffer) error {
	if s.length == 0 {
		return status.Errorf(status.InvalidValue, "source buffer has no data")
	}
	if room := b.room(); s.length > room {
		return status.Errorf(status.InvalidValue, "destination buffer has room for %d bytes, the source has %d", room, s.length)
	}
	if !b.memory.mayBeDestination() {
		return status.Errorf(status.NotPermitted, "destination memory may not be written: its map lacks LocalWrite, or PCIWrite if it is imported")
	}
	var err error
	s.copy.Destination, err = c.segment("destination", b, b.data+b.dataLength, s.length)
	return err
}

// segment is a range of a buffer as the device knows it.
func (c *Context) segment(what string, b *Buffer, address, length uint64) (Segment, error) {
	r := b.memory.registration(c.device)
	if r == nil {
		return Segment{}, status.Errorf(status.NotPermitted, "%s memory was not given to device %s, which is to copy it", what, c.device.Name())
	}
	return Segment{Memory: r, Offset: address - b.memory.region.Base(), Length: length}, nil
}

// hold keeps the buffers of a job as they are until it is done.
func (s *slot) hold(count int) {
	for b := s.job.Source; b != nil; b = b.next {
		b.jobs += count
	}
	s.job.Destination.jobs += count
}
