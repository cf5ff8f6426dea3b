// SPDX-License-Identifier: Apache-2.0

package ublk

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/zc-relay/zc-relay/pkg/blockio"
)

// Units.
const (
	sectorSize   = 512
	maxBlockSize = 4096 // that of a page, the largest one that the driver takes
)

// A command's number on the ring is that of an ioctl of type 'u' (_IOC of asm-generic/ioctl.h).
const (
	ioctlRead      = 2 << 30
	ioctlReadWrite = 3 << 30
	ioctlType      = 'u' << 8
)

// controlSize is the size of a control command (struct ublksrv_ctrl_cmd), and commandSize that of a
// command of a queue (struct ublksrv_io_cmd).
const (
	controlSize = 32
	commandSize = 16
)

// operation is a control command to the driver.
type operation uint32

const (
	getInfo       operation = ioctlRead | controlSize<<16 | ioctlType | 0x02
	addDevice     operation = ioctlReadWrite | controlSize<<16 | ioctlType | 0x04
	deleteDevice  operation = ioctlReadWrite | controlSize<<16 | ioctlType | 0x05
	startDevice   operation = ioctlReadWrite | controlSize<<16 | ioctlType | 0x06
	stopDevice    operation = ioctlReadWrite | controlSize<<16 | ioctlType | 0x07
	setParameters operation = ioctlReadWrite | controlSize<<16 | ioctlType | 0x08
	getParameters operation = ioctlRead | controlSize<<16 | ioctlType | 0x09
	startRecovery operation = ioctlReadWrite | controlSize<<16 | ioctlType | 0x10
	endRecovery   operation = ioctlReadWrite | controlSize<<16 | ioctlType | 0x11
	getFeatures   operation = ioctlRead | controlSize<<16 | ioctlType | 0x13
	deleteLater   operation = ioctlRead | controlSize<<16 | ioctlType | 0x14
	updateSize    operation = ioctlReadWrite | controlSize<<16 | ioctlType | 0x15 // Linux 6.16
)

// String returns the name in the kernel's documentation.
func (o operation) String() string {
	switch o {
	case getInfo:
		return "UBLK_CMD_GET_DEV_INFO"
	case addDevice:
		return "UBLK_CMD_ADD_DEV"
	case deleteDevice:
		return "UBLK_CMD_DEL_DEV"
	case startDevice:
		return "UBLK_CMD_START_DEV"
	case stopDevice:
		return "UBLK_CMD_STOP_DEV"
	case setParameters:
		return "UBLK_CMD_SET_PARAMS"
	case getParameters:
		return "UBLK_CMD_GET_PARAMS"
	case startRecovery:
		return "UBLK_CMD_START_USER_RECOVERY"
	case endRecovery:
		return "UBLK_CMD_END_USER_RECOVERY"
	case getFeatures:
		return "UBLK_CMD_GET_FEATURES"
	case deleteLater:
		return "UBLK_CMD_DEL_DEV_ASYNC"
	case updateSize:
		return "UBLK_CMD_UPDATE_SIZE"
	}
	return "unknown command"
}

// queueOperation is a command of a queue.
type queueOperation uint32

const (
	fetchRequest   queueOperation = ioctlReadWrite | commandSize<<16 | ioctlType | 0x20
	commitAndFetch queueOperation = ioctlReadWrite | commandSize<<16 | ioctlType | 0x21
	needGetData    queueOperation = ioctlReadWrite | commandSize<<16 | ioctlType | 0x22
)

// feature is a flag of a device (UBLK_F_*).
type feature uint64

const (
	featureGetData      feature = 1 << 2 // the server says for each write where its data goes
	featureRecovery     feature = 1 << 3
	featureReissue      feature = 1 << 4 // what was not answered is sent to the next server
	featureUnprivileged feature = 1 << 5
	featureIoctl        feature = 1 << 6 // commands have the numbers of ioctls
	featureUpdateSize   feature = 1 << 10
)

// required are the features that every device of this package has.
const required = featureGetData | featureIoctl

// States of a device (UBLK_S_DEV_*).
const (
	stateDead     = 0
	stateLive     = 1
	stateQuiesced = 2 // its server has gone
)

// Results of a queue's commands, besides negative errors (UBLK_IO_RES_*).
const (
	resultOK          = 0
	resultNeedGetData = 1
	resultAborted     = -19 // -ENODEV: the device ends, or the server
)

// deviceInfo is what the kernel knows about a device (struct ublksrv_ctrl_dev_info).
type deviceInfo struct {
	queues, depth uint16
	state         uint16
	maxBytes      uint32 // of a request
	id            uint32
	process       int32 // that serves it
	features      feature
	cookie        uint64 // ublksrv_flags, which the kernel only keeps
}

const infoSize = 64

func (d *deviceInfo) encode() []byte {
	b := make([]byte, infoSize)
	e := binary.NativeEndian
	e.PutUint16(b, d.queues)
	e.PutUint16(b[2:], d.depth)
	e.PutUint16(b[4:], d.state)
	e.PutUint32(b[8:], d.maxBytes)
	e.PutUint32(b[12:], d.id)
	e.PutUint32(b[16:], uint32(d.process))
	e.PutUint64(b[24:], uint64(d.features))
	e.PutUint64(b[32:], d.cookie)
	return b
}

func decodeInfo(b []byte) deviceInfo {
	e := binary.NativeEndian
	_ = b[infoSize-1]
	return deviceInfo{queues: e.Uint16(b), depth: e.Uint16(b[2:]), state: e.Uint16(b[4:]),
		maxBytes: e.Uint32(b[8:]), id: e.Uint32(b[12:]), process: int32(e.Uint32(b[16:])),
		features: feature(e.Uint64(b[24:])), cookie: e.Uint64(b[32:])}
}

// parameters describe a device to its users (struct ublk_params, with basic and discard).
type parameters struct {
	attributes           uint32
	blockShift           uint8 // logical
	physicalShift        uint8
	optimalShift         uint8 // of the best length
	leastShift           uint8 // of the shortest good length
	maxSectors           uint32
	sectors              uint64 // of the device
	canDiscard           bool
	discardGranularity   uint32 // bytes
	maxDiscardSectors    uint32
	maxWriteZeroesSector uint32
}

// Attributes (UBLK_ATTR_*).
const (
	attributeReadOnly = 1 << 0
	attributeCache    = 1 << 2 // volatile: a flush makes writes durable
	attributeFUA      = 1 << 3
)

// Kinds of parameters (UBLK_PARAM_TYPE_*).
const (
	parametersBasic   = 1 << 0
	parametersDiscard = 1 << 1
)

// parametersSize is what this package uses of struct ublk_params: header, basic, discard, without
// what follows.
const parametersSize = 8 + 32 + 20

func (p *parameters) encode() []byte {
	b := make([]byte, parametersSize)
	e := binary.NativeEndian
	kinds := uint32(parametersBasic)
	if p.canDiscard {
		kinds |= parametersDiscard
	}
	e.PutUint32(b, parametersSize)
	e.PutUint32(b[4:], kinds)
	e.PutUint32(b[8:], p.attributes)
	b[12], b[13], b[14], b[15] = p.blockShift, p.physicalShift, p.optimalShift, p.leastShift
	e.PutUint32(b[16:], p.maxSectors)
	e.PutUint64(b[24:], p.sectors)
	e.PutUint32(b[44:], p.discardGranularity)
	e.PutUint32(b[48:], p.maxDiscardSectors)
	e.PutUint32(b[52:], p.maxWriteZeroesSector)
	e.PutUint16(b[56:], 1) // ranges of a discard, the most that the driver takes
	return b
}

func decodeParameters(b []byte) parameters {
	e := binary.NativeEndian
	_ = b[parametersSize-1]
	return parameters{attributes: e.Uint32(b[8:]), blockShift: b[12], physicalShift: b[13],
		optimalShift: b[14], leastShift: b[15], maxSectors: e.Uint32(b[16:]),
		sectors: e.Uint64(b[24:]), canDiscard: e.Uint32(b[4:])&parametersDiscard != 0,
		discardGranularity: e.Uint32(b[44:]), maxDiscardSectors: e.Uint32(b[48:]),
		maxWriteZeroesSector: e.Uint32(b[52:])}
}

// descriptor is a request as the kernel describes it (struct ublksrv_io_desc), without the address,
// which this side knows.
type descriptor struct {
	flags   uint32
	sectors uint32
	start   uint64 // sector
}

const descriptorSize = 24

func decodeDescriptor(b []byte) descriptor {
	e := binary.NativeEndian
	_ = b[descriptorSize-1]
	return descriptor{flags: e.Uint32(b), sectors: e.Uint32(b[4:]), start: e.Uint64(b[8:])}
}

// Flags of a request above its operation in the low 8 bits (UBLK_IO_F_*). The others are hints.
const (
	flagFUA     = 1 << 13
	flagNoUnmap = 1 << 15
)

// commands holds the command of each operation of a request (UBLK_IO_OP_*).
var commands = map[uint8]blockio.Command{
	0: blockio.Read, 1: blockio.Write, 2: blockio.Flush, 3: blockio.Trim, 5: blockio.WriteZeroes,
}

// Commands returns the commands that the kernel knows.
func Commands() []blockio.Command { return slices.Sorted(maps.Values(commands)) }

// command returns what the request asks for; false if this package does not know it.
func (d *descriptor) command() (blockio.Command, blockio.CommandFlags, bool) {
	command, isKnown := commands[uint8(d.flags)]
	var flags blockio.CommandFlags
	if d.flags&flagFUA != 0 && command != blockio.Read {
		flags |= blockio.FUA
	}
	if d.flags&flagNoUnmap != 0 && command == blockio.WriteZeroes {
		flags |= blockio.NoHole
	}
	return command, flags, isKnown
}
