// SPDX-License-Identifier: Apache-2.0

package hostilecomch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated/rawtest"
	"github.com/zc-relay/zc-relay/pkg/memory"
)

// Environment of an attacking process.
const (
	attackVariable    = "ZC_RELAY_HOSTILE_ATTACK"
	directoryVariable = "ZC_RELAY_HOSTILE_DIRECTORY"
)

// attacks run until their process is killed, or return when they can do no more to the server.
var attacks = map[string]func(directory string) error{
	"corrupts the rings":               withSession(corruptRings),
	"punches holes into shared memory": withSession(punchHoles),
	"fills the doorbells":              withSession(fillDoorbells),
	"shuts down the doorbells":         withSession(shutDownDoorbells),
	"rings the doorbells forever":      withSession(ringForever),
	"sends random packets":             randomPackets,
	"sends random frames after hello":  randomFrames,
	"sends too many descriptors":       tooManyDescriptors,
	"sends hello and never replies":    neverReply,
	"connects and stays silent":        staySilent,
	"opens consumers forever":          openForever,
	"sends requests and never reads":   requestForever,

	"hoards descriptors behind a stuck one": hoard,
	"abandons stuck doorbells":              abandonStuck,
	"abandons packets with many descriptors": abandonPackets(dialAndGreet,
		rawtest.Frame(rawtest.OpenConsumer, 1, 1, 64, 0), 200),
	"abandons stuck descriptors before its hello": abandonPackets(dial,
		rawtest.Frame(rawtest.Export), 0),
	"opens and closes tiny consumers forever": churn,
	"opens consumers and never reads":         leaveReplies,
	"takes all memory for rings":              takeRings,
}

// noise is the source of random bytes of an attack, which runs on one goroutine.
var noise *rand.ChaCha8

// runAttack runs an attack in its own process.
func runAttack(name string) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the test has exited
	}()
	seed, err := seedtest.OfEnvironment()
	if err != nil {
		return err
	}
	noise = rand.NewChaCha8([32]byte(binary.NativeEndian.AppendUint64(make([]byte, 24), seed)))
	attack := attacks[name]
	if attack == nil {
		return fmt.Errorf("unknown attack %q", name)
	}
	if err := attack(os.Getenv(directoryVariable)); err != nil {
		fmt.Println(err) // startAttack fails the test if it reads this
	}
	select {}
}

// announce tells startAttack that the attack has started.
func announce() { fmt.Println("attacking") }

// withSession runs an attack from within a valid session.
func withSession(attack func() error) func(string) error {
	return func(directory string) error {
		if err := openSession(directory); err != nil {
			return err
		}
		announce()
		return attack()
	}
}

func openSession(directory string) error {
	ctx := context.Background()
	connection, err := emulated.New(emulated.Options{Directory: directory}).Connect(ctx,
		comch.ClientConfig{Name: serverName})
	if err != nil {
		return err
	}
	if _, err := newDataPath(ctx, connection); err != nil {
		return err
	}
	region, err := memory.Alloc("hostile-export", 1<<20)
	if err != nil {
		return err
	}
	token, err := connection.ExportMemory(ctx, region, memory.PCIRead|memory.PCIWrite)
	if err != nil {
		return err
	}
	return connection.Send(ctx, token)
}

// descriptorsLike returns the descriptors of this process whose files have names with the given
// prefix.
func descriptorsLike(prefix string) ([]int, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, entry := range entries {
		target, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err != nil || !strings.HasPrefix(target, prefix) {
			continue
		}
		number, err := strconv.Atoi(entry.Name())
		if err != nil {
			return nil, err
		}
		found = append(found, number)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no descriptor of a file like %s", prefix)
	}
	return found, nil
}

// corruptRings writes random bytes at random offsets of all rings.
func corruptRings() error {
	rings, err := descriptorsLike("/memfd:zc-relay-comch-ring")
	if err != nil {
		return err
	}
	var random [16]byte
	for {
		for _, ring := range rings {
			var stat unix.Stat_t
			if err := unix.Fstat(ring, &stat); err != nil {
				return err
			}
			_, _ = noise.Read(random[:])
			count := int64(random[15] % 8)
			offset := (int64(random[0])<<8 | int64(random[1])) % (stat.Size - count)
			if _, err := unix.Pwrite(ring, random[2:2+count], offset); err != nil {
				return err
			}
		}
	}
}

// punchHoles frees the pages of all shared memory, again and again.
func punchHoles() error {
	shared, err := descriptorsLike("/memfd:")
	if err != nil {
		return err
	}
	for {
		for _, descriptor := range shared {
			err := unix.Fallocate(descriptor,
				unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20)
			if errors.Is(err, unix.EBADF) {
				// The provider has closed its duplicate of the exported memory, which it needs
				// only until it has sent it. List the others.
				if shared, err = descriptorsLike("/memfd:"); err == nil {
					break
				}
			}
			if err != nil {
				return err
			}
		}
	}
}

// doorbells returns the datagram sockets of this process.
func doorbells() ([]int, error) {
	sockets, err := descriptorsLike("socket:")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, s := range sockets {
		if kind, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_TYPE); err == nil &&
			kind == unix.SOCK_DGRAM {
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("this process has no doorbells")
	}
	return found, nil
}

func fillDoorbells() error {
	bells, err := doorbells()
	if err != nil {
		return err
	}
	for _, bell := range bells {
		for unix.Send(bell, make([]byte, 64), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) == nil {
		}
		if err := unix.SetNonblock(bell, false); err != nil {
			return err
		}
	}
	return nil
}

func shutDownDoorbells() error {
	bells, err := doorbells()
	if err != nil {
		return err
	}
	for i, bell := range bells {
		if i%2 == 0 {
			err = unix.Shutdown(bell, unix.SHUT_RDWR)
		} else {
			err = unix.Close(bell)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func ringForever() error {
	bells, err := doorbells()
	if err != nil {
		return err
	}
	for {
		for _, bell := range bells {
			_ = unix.Send(bell, []byte{1}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
	}
}

// socketPath returns the path of the server's socket.
func socketPath(directory string) string {
	return rawtest.Path(directory, serverName)
}
