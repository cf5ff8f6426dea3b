//go:build verbs

package ibv

// #include "shim.h"
import "C"

import (
	"net"
	"net/netip"
	"strconv"
	"unsafe"
)

// socketAddress encodes an address.
func socketAddress(a netip.AddrPort) C.struct_sockaddr_storage {
	var storage C.struct_sockaddr_storage
	ip := a.Addr().Unmap().AsSlice()
	C.zc_address(&storage, (*C.uint8_t)(unsafe.SliceData(ip)), C.int(len(ip)), C.uint16_t(a.Port()), C.uint32_t(scopeOf(a.Addr())))
	return storage
}

func asSocketAddress(s *C.struct_sockaddr_storage) *C.struct_sockaddr {
	return (*C.struct_sockaddr)(unsafe.Pointer(s))
}

// scopeOf is the interface that a link-local address belongs to.
func scopeOf(a netip.Addr) uint32 {
	zone := a.Zone()
	if zone == "" {
		return 0
	}
	if index, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(index)
	}
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index)
	}
	return 0
}

// addressOf decodes an address; one of another family is invalid.
func addressOf(s *C.struct_sockaddr) netip.AddrPort {
	var b [16]byte
	var port C.uint16_t
	n := int(C.zc_read_address(s, (*C.uint8_t)(&b[0]), &port))
	address, ok := netip.AddrFromSlice(b[:n])
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(address.Unmap(), uint16(port))
}
