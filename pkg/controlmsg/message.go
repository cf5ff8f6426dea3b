package controlmsg

// Message is one of the messages of this package, always as a pointer. The
// set is closed: another codec translates to and from these.
type Message interface {
	// Kind tells which message it is.
	Kind() Kind
	// validate returns an error that says which field holds what it must not.
	validate() error
}

// Validate returns an InvalidValue or TooBig error unless every field of the
// message is within the protocol's limits. A Codec calls it in both
// directions, so that neither side sends what the other would refuse.
func Validate(message Message) error { return message.validate() }

// Envelope is what travels: a message and the request that it belongs to.
type Envelope struct {
	// Correlation is chosen by the requesting side, is unique on the
	// connection and never 0; a reply carries that of its request. It is 0
	// in messages that belong to no request.
	Correlation uint64
	Message     Message
}

// Codec turns envelopes into bytes and back. Its methods may be called
// concurrently.
type Codec interface {
	// Name is the codec's name in logs, for instance "protobuf".
	Name() string
	// Append appends the encoded envelope to dst. It fails if the message is
	// not valid.
	Append(dst []byte, e *Envelope) ([]byte, error)
	// Decode decodes one envelope that takes up all of b, and keeps nothing
	// of b. What it returns is valid. status.Unexpected is the code for a
	// message of unknown kind, status.InvalidValue or status.TooBig for
	// everything else.
	Decode(b []byte) (*Envelope, error)
}
