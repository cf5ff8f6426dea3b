// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/similar"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Limits of a Spec.
const (
	MinBlockSize  = 512
	MaxBlockSize  = 1 << 20
	MaxNameLength = 255 // bytes; the control protocol's limit
)

// BackendForms lists the text forms of backends, for help texts and errors.
const BackendForms = "memory:SIZE[,exclusive] or " +
	"file:PATH[,size=SIZE][,readonly][,direct][,shared=fenced-by-operator][,exclusive] or " +
	"rbd:POOL[/NAMESPACE]/IMAGE[,conf=PATH][,id=NAME][,group=NAME][,create=SIZE][,readonly]" +
	"[,takeover][,fence=DURATION][,passphrase-file=PATH][,exclusive] or volume:NAME[,readonly]"

// Spec describes a volume to open.
type Spec struct {
	// Name is the volume's name: printable UTF-8 without "=".
	Name string
	// BlockSize is in bytes, a power of two from MinBlockSize to MaxBlockSize.
	BlockSize uint32
	// Backend holds the content.
	Backend Backend
	// Exclusive is for the program that serves the volume: one client at a time may write.
	Exclusive bool
	// Keeper, if not nil, lets a file volume keep its write verifier when the program is killed and
	// starts again.
	Keeper Keeper
	// CleanEnds, if not nil, lets a file volume keep its write verifier when it is closed and
	// opened again.
	CleanEnds *CleanEnds
	// Logger receives the first error of each kind and then, while errors continue, their number
	// every 10 s; and the reason when the volume stops accepting requests. It may be nil.
	Logger *zap.Logger
}

// Backend is a kind of volume with its parameters.
type Backend interface {
	// String returns the part of the text form after "NAME=".
	String() string
	// Validate returns an InvalidValue error if Open is sure to fail.
	Validate(spec *Spec) error
	// Open opens or creates the volume. Callers use the function Open, which validates first.
	Open(spec *Spec) (Volume, error)
}

// Checker is a Backend that can say why Open would fail without opening the volume.
type Checker interface {
	// Check returns an error if Open would fail for now. It locks, creates, and changes nothing,
	// so another program may use the volume. It fails with status.InUse if the kernel or another
	// program keeps the storage to itself.
	Check(spec *Spec) error
}

// Check returns why Open would fail, as far as the backend can say that without opening the volume.
func Check(spec Spec) error {
	err := spec.validate()
	if checker, can := spec.Backend.(Checker); can && err == nil {
		err = checker.Check(&spec)
	}
	if err != nil {
		return fmt.Errorf("volume %q: %w", spec.Name, err)
	}
	return nil
}

// Open opens a volume, or creates it if the backend provides for that.
func Open(spec Spec) (Volume, error) {
	if err := spec.validate(); err != nil {
		return nil, fmt.Errorf("open volume %q: %w", spec.Name, err)
	}
	if spec.Logger == nil {
		spec.Logger = zap.NewNop()
	}
	var v Volume
	var err error
	if c, ok := spec.Backend.(Contender); ok && c.Contends() {
		v, err = openContended(spec, c)
	} else {
		v, err = spec.Backend.Open(&spec)
	}
	if err != nil {
		return nil, fmt.Errorf("open volume %q: %w", spec.Name, err)
	}
	return v, nil
}

// IsMisconfigured reports whether an error of Open is that of a wrong Spec, or of a program that
// lacks what the Spec needs: to open the volume again would fail as well. Storage that is missing,
// in use, full, or fails may come back.
func IsMisconfigured(err error) bool {
	never := []error{status.BadConfig, status.NotSupported, syscall.EISDIR, syscall.ENOTDIR,
		syscall.ELOOP, syscall.ENAMETOOLONG, syscall.EINVAL, syscall.ENOTBLK}
	return slices.ContainsFunc(never, func(e error) bool { return errors.Is(err, e) })
}

// ParseSpec parses the text form of a Spec, which is NAME=BACKEND: see BackendForms.
//
// Most errors do not repeat text, so the caller adds it.
func ParseSpec(text string, blockSize uint32) (Spec, error) {
	name, backend, found := strings.Cut(text, "=")
	if kind, _, _ := strings.Cut(text, ":"); slices.ContainsFunc(kinds,
		func(k kindForm) bool { return k.name == kind }) && !strings.Contains(name, "=") &&
		strings.Contains(name, ":") {
		return Spec{}, status.Errorf(status.InvalidValue,
			"a name for the volume and \"=\" are missing: write for instance disk=%s", Redacted(text))
	}
	if !found {
		return Spec{}, status.Errorf(status.InvalidValue,
			"%q has no \"=\": write NAME=BACKEND, for instance disk=memory:1GiB, where BACKEND is %s",
			Redacted(text), BackendForms)
	}
	backend, exclusive := cutOption(backend, "exclusive")
	parsed, err := parseBackend(backend)
	if err != nil {
		return Spec{}, err
	}
	spec := Spec{Name: name, BlockSize: blockSize, Backend: parsed, Exclusive: exclusive}
	if err := spec.validate(); err != nil {
		return Spec{}, err
	}
	return spec, nil
}

// CutOptions separates the options of a kind of volume from the path before them.
func CutOptions(argument string) (path string, options []string) {
	parts := strings.Split(argument, ",")
	return parts[0], parts[1:]
}

// ParseSize parses the size in bytes that an option of a volume sets. It must not be 0.
func ParseSize(volume, option, text string) (uint64, error) {
	bytes, err := size.Parse(text)
	if err != nil {
		return 0, status.Errorf(status.InvalidValue, "%s: %w", volume, err)
	}
	if bytes == 0 {
		return 0, status.Errorf(status.InvalidValue, "%s: %s=0 leaves no room for data", volume,
			option)
	}
	return uint64(bytes), nil
}

// cutOption returns the text of a backend without an option, and whether it was there.
func cutOption(text, option string) (string, bool) {
	path, options := CutOptions(text)
	rest := slices.DeleteFunc(slices.Clone(options),
		func(other string) bool { return other == option })
	return strings.Join(append([]string{path}, rest...), ","), len(rest) < len(options)
}

func parseBackend(text string) (Backend, error) {
	kind, argument, found := strings.Cut(text, ":")
	if found {
		switch kind {
		case "memory":
			return parseMemory(argument)
		case "file":
			return parseFile(argument)
		case "volume":
			return parseAlias(argument)
		}
		if parse := registered[kind]; parse != nil {
			return parse(argument)
		}
	}
	return nil, status.Errorf(status.InvalidValue, "%s", wrongKind(text, kind, found))
}

type kindForm struct{ name, example string }

// kinds holds the kinds of volumes, with an example of what follows each.
var kinds = []kindForm{
	{"memory", "memory:1GiB"}, {"file", "file:/var/tmp/disk.img,size=1GiB"},
	{"rbd", "rbd:POOL/IMAGE"}, {"volume", "volume:NAME"},
}

// wrongKind says what a backend that begins with no kind of volume is probably meant to be.
func wrongKind(text, kind string, hasColon bool) string {
	text = Redacted(text)
	const allowed = "the kinds are memory, file, rbd, and volume"
	word, _ := CutOptions(kind)
	var names []string
	for _, k := range kinds {
		if word == k.name && !hasColon {
			return fmt.Sprintf("nothing follows the kind of volume %s: write for instance %s", k.name,
				k.example)
		}
		if strings.Contains(text, "="+k.name+":") {
			return "it does not begin with a kind of volume: \"=\" ends the name, which cannot contain it"
		}
		names = append(names, k.name)
	}
	path, options := CutOptions(text)
	if _, err := size.Parse(path); err == nil {
		return fmt.Sprintf("a size alone is no backend: write memory:%s, or file:PATH,size=%s", text,
			path)
	}
	if strings.ContainsAny(path, "/") && (!hasColon || strings.Contains(kind, "/")) {
		advice := "file:" + text
		isSize := func(option string) bool { return strings.HasPrefix(option, "size=") }
		if !slices.ContainsFunc(options, isSize) {
			advice += ", with ,size=SIZE if there is no such file yet"
		}
		return "a path alone is no backend: write " + advice
	}
	if best := similar.Closest(strings.ToLower(word), names); best != "" {
		return fmt.Sprintf("unknown kind of volume %q: did you mean %s:? (%s)", word, best, allowed)
	}
	return "it does not begin with a kind of volume and a colon: " + allowed
}

// UnknownOption returns the error for an option that a volume does not have. It has the known ones,
// of which those with a value end in "=" and its form. The value of the option, which may be a
// secret, is not in the text.
func UnknownOption(volume, option string, known ...string) error {
	word, _, _ := strings.Cut(option, "=")
	words := make([]string, len(known))
	for i, k := range known {
		words[i], _, _ = strings.Cut(k, "=")
	}
	hint := "the options are " + strings.Join(known, ", ")
	if len(known) == 1 {
		hint = "the only option is " + known[0]
	}
	if best := similar.Closest(strings.ToLower(word), words); best != "" {
		hint = "did you mean " + known[slices.Index(words, best)] + "? " + hint
	}
	if slices.Contains(secretOptions, strings.ToLower(word)) {
		hint = "this kind of volume has no secret: remove it"
		if slices.Contains(words, "passphrase-file") {
			hint = "others can read what is here: write a passphrase into a file, and name that by " +
				"passphrase-file=PATH; the key of a client is in the keyring that the file of " +
				"conf=PATH names"
		}
	}
	return status.Errorf(status.InvalidValue, "%s: unknown option %q: %s (a comma separates options)",
		volume, word, hint)
}

// secretOptions are names that users may expect for an option with a secret.
var secretOptions = []string{"passphrase", "password", "passwd", "pass", "key", "secret", "luks",
	"encryption-passphrase", "encryption_passphrase"}

// shownOptions are the options whose values are no secrets.
var shownOptions = []string{"size", "shared", "conf", "id", "group", "create", "fence",
	"passphrase-file"}

// Redacted returns the text of a backend, which may be wrong, as logs and errors can show it: it
// ends before the value of the first option that no kind of volume has, because that value may be a
// secret.
func Redacted(backend string) string {
	path, options := CutOptions(backend)
	for i, option := range options {
		word, _, hasValue := strings.Cut(option, "=")
		if hasValue && !slices.Contains(shownOptions, word) {
			return strings.Join(append([]string{path}, options[:i]...), ",") + "," + word + "=…"
		}
	}
	return backend
}

// registered holds the parsers of kinds of volumes in other packages.
var registered = make(map[string]func(argument string) (Backend, error))

// Register adds a kind of volume. parse parses what follows the kind and its colon, except the
// option exclusive. Packages call Register while they are initialized.
func Register(kind string, parse func(argument string) (Backend, error)) {
	registered[kind] = parse
}

// Alias is another name of a volume. Open rejects it: the program that serves volumes knows which
// one it is.
type Alias struct {
	Of string
	// ReadOnly makes what is served under this name read-only.
	ReadOnly bool
}

func parseAlias(argument string) (Backend, error) {
	name, readOnly := cutOption(argument, "readonly")
	if name, options := CutOptions(name); name != "" && len(options) > 0 {
		return nil, UnknownOption("volume:"+name, options[0], "readonly", "exclusive")
	}
	if name == "" {
		return nil, status.Errorf(status.InvalidValue,
			"volume:%s is not volume:NAME or volume:NAME,readonly", argument)
	}
	return Alias{Of: name, ReadOnly: readOnly}, nil
}

// String returns "volume:", the name, and the option.
func (a Alias) String() string {
	if a.ReadOnly {
		return "volume:" + a.Of + ",readonly"
	}
	return "volume:" + a.Of
}

// Validate returns nil.
func (a Alias) Validate(*Spec) error { return nil }

// Open returns an error.
func (a Alias) Open(*Spec) (Volume, error) {
	return nil, status.Errorf(status.InvalidValue, "it is another name of volume %q", a.Of)
}

// String returns the text form of the spec, which does not include the block size.
func (s *Spec) String() string {
	text := s.Name + "="
	if s.Backend != nil {
		text += s.Backend.String()
	}
	if s.Exclusive {
		text += ",exclusive"
	}
	return text
}

func (s *Spec) validate() error {
	forbidden := func(r rune) bool { return r < ' ' || r == 0x7f || r == '=' }
	if s.Name == "" || len(s.Name) > MaxNameLength || !utf8.ValidString(s.Name) ||
		strings.ContainsFunc(s.Name, forbidden) {
		return status.Errorf(status.InvalidValue,
			"name %q is not 1 to %d bytes of printable text without \"=\"", s.Name, MaxNameLength)
	}
	if s.BlockSize < MinBlockSize || s.BlockSize > MaxBlockSize ||
		s.BlockSize&(s.BlockSize-1) != 0 {
		return status.Errorf(status.InvalidValue,
			"block size %d is not a power of two from %d to %d",
			s.BlockSize, MinBlockSize, MaxBlockSize)
	}
	if s.Backend == nil {
		return status.Errorf(status.InvalidValue,
			"Spec.Backend is nil: it is what holds the content, for instance MemoryBackend")
	}
	return s.Backend.Validate(s)
}

// CheckNewSize returns an error unless a volume of this size in bytes can be created.
func (s *Spec) CheckNewSize(bytes uint64) error { return checkNewSize(bytes, s.BlockSize) }

func checkNewSize(bytes uint64, blockSize uint32) error {
	if bytes < uint64(blockSize) {
		return status.Errorf(status.InvalidValue, "size %v is less than one block of %v",
			size.Bytes(bytes), size.Bytes(blockSize))
	}
	if bytes > math.MaxInt64 || bytes%uint64(blockSize) != 0 {
		rounded := max(bytes/uint64(blockSize), 1) * uint64(blockSize)
		return status.Errorf(status.InvalidValue,
			"size %v is not a positive multiple of the block size %v, as %v is", size.Bytes(bytes),
			size.Bytes(blockSize), size.Bytes(min(rounded, 1<<62)))
	}
	return nil
}
