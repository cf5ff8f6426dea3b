// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"os"
)

// runSharedStorage serves requests from memory that the middle has mapped: it says where the data
// of a read lies, and stores the data of a write from where the middle has put it.
func runSharedStorage(p parameters) error {
	staging := p.depth * p.blockSize
	temporary := p.socketFile() + ".new"
	s, data, err := mapFile(temporary, staging+volumeSize, true)
	if err != nil {
		return err
	}
	volume := data[staging:]
	for i := range volume {
		volume[i] = byte(i)
	}
	if err := os.Rename(temporary, p.socketFile()); err != nil {
		return err
	}
	blocks := uint64(volumeSize / p.blockSize)
	var message [messageSize]byte
	for next := uint64(0); ; {
		if !s.requests.get(next, &message) {
			yield()
			continue
		}
		block := binary.BigEndian.Uint64(message[32:]) % blocks * uint64(p.blockSize)
		if p.write {
			slot := int(binary.BigEndian.Uint32(message[8:]))
			copy(volume[block:], data[slot*p.blockSize:][:p.blockSize])
		}
		binary.BigEndian.PutUint64(message[40:], block)
		s.answers.put(next, &message)
		next++
	}
}

// runSharedMiddle forwards requests to the storage and responses to the client, and copies the data
// between their memories.
func runSharedMiddle(p parameters) error {
	if err := await(p.sharedFile(0)); err != nil {
		return err
	}
	if err := await(p.socketFile()); err != nil {
		return err
	}
	client, clientData, err := mapShared(&p, 0, false)
	if err != nil {
		return err
	}
	staging := p.depth * p.blockSize
	storage, storageData, err := mapFile(p.socketFile(), staging+volumeSize, false)
	if err != nil {
		return err
	}
	var message [messageSize]byte
	for forwarded, answered := uint64(0), uint64(0); ; {
		before := forwarded + answered
		for client.requests.get(forwarded, &message) {
			if p.write {
				at := int(binary.BigEndian.Uint32(message[8:])) * p.blockSize
				copy(storageData[at:], clientData[at:at+p.blockSize])
			}
			storage.requests.put(forwarded, &message)
			forwarded++
		}
		for storage.answers.get(answered, &message) {
			if !p.write {
				at := int(binary.BigEndian.Uint32(message[8:])) * p.blockSize
				block := binary.BigEndian.Uint64(message[40:])
				copy(clientData[at:at+p.blockSize], storageData[uint64(staging)+block:])
			}
			client.answers.put(answered, &message)
			answered++
		}
		if forwarded+answered == before {
			yield()
		}
	}
}
