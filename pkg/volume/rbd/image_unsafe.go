// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo

package rbd

// #cgo LDFLAGS: -lrbd -lrados
// #include <rbd/librbd.h>
// #include <errno.h>
// #include <stdlib.h>
// #include <string.h>
//
// /* Ceph 15 and older lack it. */
// #pragma weak rbd_encryption_load
//
// static int zc_rbd_can_decrypt(void) { return rbd_encryption_load != NULL; }
//
// static int zc_rbd_decrypt(rbd_image_t image, int version, const char *passphrase, size_t size)
// {
// 	rbd_encryption_luks1_format_options_t luks1 = { .passphrase = passphrase,
// 							.passphrase_size = size };
// 	rbd_encryption_luks2_format_options_t luks2 = { .passphrase = passphrase,
// 							.passphrase_size = size };
//
// 	if (version == 1)
// 		return rbd_encryption_load(image, RBD_ENCRYPTION_FORMAT_LUKS1, &luks1, sizeof(luks1));
// 	return rbd_encryption_load(image, RBD_ENCRYPTION_FORMAT_LUKS2, &luks2, sizeof(luks2));
// }
import "C"

import (
	"unsafe"

	"github.com/ceph/go-ceph/rados"
	"golang.org/x/sys/unix"
)

// image is an open image. Its methods may block, except in the data path. go-ceph's own image
// does not show its handle, which the data path needs.
type image struct{ handle C.rbd_image_t }

func openImage(pool *rados.IOContext, name string, readOnly bool) (*image, error) {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	i := &image{}
	if readOnly {
		return i, errnoOf(C.rbd_open_read_only(C.rados_ioctx_t(pool.Pointer()), cName, &i.handle,
			nil))
	}
	return i, errnoOf(C.rbd_open(C.rados_ioctx_t(pool.Pointer()), cName, &i.handle, nil))
}

// errnoOf converts the result of a function of librbd.
func errnoOf(result C.int) error {
	if result >= 0 {
		return nil
	}
	return unix.Errno(-result)
}

func (i *image) close() error { return errnoOf(C.rbd_close(i.handle)) }
func (i *image) flush() error { return errnoOf(C.rbd_flush(i.handle)) }

// size returns the current size in bytes.
func (i *image) size() (uint64, error) {
	var bytes C.uint64_t
	err := errnoOf(C.rbd_get_size(i.handle, &bytes))
	return uint64(bytes), err
}

// read fills a buffer from the start of the image, or as much of it as there is.
func (i *image) read(buffer []byte) error {
	n := C.rbd_read(i.handle, 0, C.size_t(len(buffer)), (*C.char)(unsafe.Pointer(&buffer[0])))
	if n < 0 {
		return unix.Errno(-n)
	}
	clear(buffer[n:])
	return nil
}

// canDecrypt reports whether this librbd knows encryption.
func canDecrypt() bool { return C.zc_rbd_can_decrypt() != 0 }

// decrypt makes the image appear without its encryption, LUKS of the given version. It is slow,
// because librbd derives a key.
func (i *image) decrypt(version int, passphrase []byte) error {
	// In memory of C, because Go may leave copies of what it moves.
	size := C.size_t(len(passphrase))
	secret := C.malloc(size)
	defer C.free(secret)
	copy(unsafe.Slice((*byte)(secret), size), passphrase)
	defer C.explicit_bzero(secret, size)
	return errnoOf(C.zc_rbd_decrypt(i.handle, C.int(version), (*C.char)(secret), size))
}

// objectSize returns the size in bytes of the objects that hold the image's content.
func (i *image) objectSize() (uint64, error) {
	var info C.rbd_image_info_t
	err := errnoOf(C.rbd_stat(i.handle, &info, C.sizeof_rbd_image_info_t))
	return uint64(info.obj_size), err
}

// maxIDLength is the length of an image's ID and the terminating zero (RBD_MAX_IMAGE_ID_LENGTH).
const maxIDLength = 14 + 1

// id returns what distinguishes the image from every other of its pool and namespace, whatever its
// name.
func (i *image) id() (string, error) {
	id := (*C.char)(C.calloc(1, maxIDLength+1))
	defer C.free(unsafe.Pointer(id))
	err := errnoOf(C.rbd_get_id(i.handle, id, maxIDLength))
	return C.GoString(id), err
}

// hasExclusiveLock reports whether the image has the feature exclusive-lock.
func (i *image) hasExclusiveLock() (bool, error) {
	var features C.uint64_t
	err := errnoOf(C.rbd_get_features(i.handle, &features))
	return features&C.RBD_FEATURE_EXCLUSIVE_LOCK != 0, err
}

// lock takes the exclusive lock, which no other client can take from this image then. If the owner
// of the lock is dead, lock waits until the cluster has noticed, and fences it.
func (i *image) lock() error {
	return errnoOf(C.rbd_lock_acquire(i.handle, C.RBD_LOCK_MODE_EXCLUSIVE))
}

func (i *image) unlock() error { return errnoOf(C.rbd_lock_release(i.handle)) }

// setting is a setting of librbd with its value for an image.
type setting struct {
	value string
	// source is where the value comes from: "pool" or "image" if it was set there, or "".
	source string
}

// settings returns all settings of librbd by name.
func (i *image) settings() (map[string]setting, error) {
	for capacity := C.int(256); ; capacity *= 2 {
		options := (*C.rbd_config_option_t)(C.calloc(C.size_t(capacity),
			C.sizeof_rbd_config_option_t))
		count := capacity
		result := C.rbd_config_image_list(i.handle, options, &count)
		if result == -C.ERANGE && capacity < 1<<14 {
			C.free(unsafe.Pointer(options))
			continue
		}
		if result < 0 {
			C.free(unsafe.Pointer(options))
			return nil, errnoOf(result)
		}
		all := make(map[string]setting)
		for _, o := range unsafe.Slice(options, count) {
			all[C.GoString(o.name)] = setting{C.GoString(o.value), map[C.rbd_config_source_t]string{
				C.RBD_CONFIG_SOURCE_POOL:  "pool",
				C.RBD_CONFIG_SOURCE_IMAGE: "image",
			}[o.source]}
		}
		C.rbd_config_image_list_cleanup(options, count)
		C.free(unsafe.Pointer(options))
		return all, nil
	}
}
