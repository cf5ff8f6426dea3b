// SPDX-License-Identifier: Apache-2.0

// Package rbd provides volumes on images of Ceph RBD.
//
// Programs that import the package understand backends of the form rbd:POOL/IMAGE. Opening one
// needs librbd, so only builds with the tag ceph can: in others, Open fails with
// status.NotSupported.
//
// The volume holds the exclusive lock of its image while it is open. librbd's cache is off, so
// every write is durable when it completes.
package rbd

import (
	"cmp"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func init() { volume.Register("rbd", parse) }

// Backend keeps the content in an image of a Ceph cluster.
type Backend struct {
	Pool      string
	Namespace string // "" for the default one
	Image     string
	// ConfigFile is the path of the cluster's configuration file; "" for DefaultConfigFile.
	ConfigFile string
	// User is the name of the Ceph user without "client."; "" for DefaultUser.
	User string
	// Group names the volumes that share a connection to the cluster, and so are fenced together.
	// Volumes of one group need the same configuration file and user.
	Group string
	// Create is the size in bytes of an image that does not exist yet. Any other image keeps its
	// size. 0 accepts only an image that exists.
	Create   uint64
	ReadOnly bool
	// TakeOver makes the volume a stand-by while another target owns the image. It fences the owner
	// and takes its place if the owner does not answer. Otherwise Open waits until the cluster has
	// noticed the death of the owner.
	TakeOver bool
	// MinimumFence is how long a former owner must stay fenced: Open fails if its entry in the
	// cluster's blocklist ends earlier. A process that stands still for longer than that, and
	// continues, could overwrite data. 0 means DefaultMinimumFence.
	MinimumFence time.Duration
	// PassphraseFile is the path of the file with the passphrase of the image's encryption, which
	// is one of RBD's formats luks1 and luks2. It is read each time the image is opened. "" opens
	// the image as it is.
	PassphraseFile string
}

// Contends reports whether TakeOver is set.
func (b Backend) Contends() bool { return b.TakeOver }

// IsEncrypted reports whether the cluster has the content only in encrypted form.
func (b Backend) IsEncrypted() bool { return b.PassphraseFile != "" }

// The defaults of a Backend.
const (
	DefaultConfigFile = "/etc/ceph/ceph.conf"
	DefaultUser       = "admin"

	// DefaultMinimumFence outlives what an administrator calls a pause.
	DefaultMinimumFence = 30 * 24 * time.Hour
)

// maxMinimumFence is less than a fence lasts, because clocks differ.
const maxMinimumFence = 9 * 365 * 24 * time.Hour

// maxNameLength is the most bytes of a name of a pool, namespace, image, or user.
const maxNameLength = 96

const form = "rbd:POOL[/NAMESPACE]/IMAGE[,conf=PATH][,id=NAME][,group=NAME][,create=SIZE]" +
	"[,readonly][,takeover][,fence=DURATION][,passphrase-file=PATH]"

func parse(argument string) (volume.Backend, error) {
	path, options := volume.CutOptions(argument)
	b := Backend{}
	switch parts := strings.Split(path, "/"); len(parts) {
	case 2:
		b.Pool, b.Image = parts[0], parts[1]
	case 3:
		b.Pool, b.Namespace, b.Image = parts[0], parts[1], parts[2]
	default:
		return nil, status.Errorf(status.InvalidValue, "rbd:%s is not %s", path, form)
	}
	for _, option := range options {
		if err := b.parseOption(option); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *Backend) parseOption(option string) error {
	key, value, _ := strings.Cut(option, "=")
	text := map[string]*string{"conf": &b.ConfigFile, "id": &b.User, "group": &b.Group,
		"passphrase-file": &b.PassphraseFile}[key]
	switch {
	case option == "readonly":
		b.ReadOnly = true
	case option == "takeover":
		b.TakeOver = true
	case text != nil && value != "":
		*text = value
		b.User = strings.TrimPrefix(b.User, "client.")
	case key == "create":
		var err error
		b.Create, err = volume.ParseSize("rbd:"+b.Pool+"/"+b.Image, key, value)
		return err
	case key == "fence":
		var err error
		if b.MinimumFence, err = time.ParseDuration(value); err != nil || b.MinimumFence <= 0 {
			return status.Errorf(status.InvalidValue, "rbd:%s/%s: fence=%s is not a duration, such as "+
				"720h", b.Pool, b.Image, value)
		}
	default:
		return volume.UnknownOption("rbd:"+b.path(), option, "conf=PATH", "id=NAME", "group=NAME",
			"create=SIZE", "readonly", "takeover", "fence=DURATION", "passphrase-file=PATH", "exclusive")
	}
	return nil
}

// String returns "rbd:", the path of the image, and the options.
func (b Backend) String() string {
	text := "rbd:" + b.path()
	for _, option := range []struct{ key, value string }{
		{"conf", b.ConfigFile}, {"id", b.User}, {"group", b.Group},
	} {
		if option.value != "" {
			text += "," + option.key + "=" + option.value
		}
	}
	if b.Create > 0 {
		text += ",create=" + size.Bytes(b.Create).String()
	}
	if b.ReadOnly {
		text += ",readonly"
	}
	if b.TakeOver {
		text += ",takeover"
	}
	if b.MinimumFence > 0 {
		text += ",fence=" + b.MinimumFence.String()
	}
	if b.PassphraseFile != "" {
		text += ",passphrase-file=" + b.PassphraseFile
	}
	return text
}

func (b Backend) user() string { return cmp.Or(b.User, DefaultUser) }

// path returns the name of the image as Ceph's tools take it.
func (b Backend) path() string {
	if b.Namespace == "" {
		return b.Pool + "/" + b.Image
	}
	return b.Pool + "/" + b.Namespace + "/" + b.Image
}

// Validate checks names and size.
func (b Backend) Validate(spec *volume.Spec) error {
	for _, name := range []struct {
		of, value string
		optional  bool
	}{
		{"pool", b.Pool, false}, {"namespace", b.Namespace, true}, {"image", b.Image, false},
		{"user", b.User, true}, {"group", b.Group, true},
	} {
		if name.value == "" && !name.optional || len(name.value) > maxNameLength ||
			strings.ContainsFunc(name.value, isForbidden) {
			return status.Errorf(status.InvalidValue,
				"rbd:%s: the name of the %s is not 1 to %d bytes of printable ASCII without "+
					"\"/\", \"@\", and \",\"", b.path(), name.of, maxNameLength)
		}
	}
	for _, option := range []struct{ key, path string }{
		{"conf", b.ConfigFile}, {"passphrase-file", b.PassphraseFile},
	} {
		if strings.ContainsAny(option.path, ",\x00\n") {
			return status.Errorf(status.InvalidValue, "rbd:%s: %s=%q cannot be a path", b.path(),
				option.key, option.path)
		}
	}
	switch {
	case b.MinimumFence > maxMinimumFence:
		return status.Errorf(status.InvalidValue, "rbd:%s: fence=%v is more than the %v for which a "+
			"former owner is fenced", b.path(), b.MinimumFence, maxMinimumFence)
	case b.ReadOnly && b.TakeOver:
		return status.Errorf(status.InvalidValue, "rbd:%s: takeover needs the image's lock, which "+
			"readonly does not take: remove one of them", b.path())
	case b.ReadOnly && b.Create > 0:
		return status.Errorf(status.InvalidValue,
			"rbd:%s: create= creates an image, which readonly forbids: remove one of them",
			b.path())
	case b.PassphraseFile != "" && b.Create > 0:
		return status.Errorf(status.InvalidValue, "rbd:%[1]s: create= creates an image without "+
			"encryption, for which passphrase-file= has no use: create the image (rbd create %[1]s "+
			"--size SIZE), encrypt it (rbd encryption format %[1]s luks2 FILE), and remove create=",
			b.path())
	case b.Create > 0:
		return spec.CheckNewSize(b.Create)
	}
	return nil
}

// isForbidden reports whether r cannot be in a name. Ceph's tools would take "@" as a snapshot.
func isForbidden(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("/@,", r) }
