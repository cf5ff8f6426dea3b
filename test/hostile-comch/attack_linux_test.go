package hostilecomch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/memory"
)

// Environment of a process that attacks.
const (
	attackVariable    = "ZC_RELAY_HOSTILE_ATTACK"
	directoryVariable = "ZC_RELAY_HOSTILE_DIRECTORY"
)

// attacks go on until their process is killed, or return when there is
// nothing more to be done to the server.
var attacks = map[string]func(directory string) error{
	"scribbles over the rings":        withSession(scribble),
	"punches holes into its memory":   withSession(punch),
	"fills the doorbells":             withSession(fillDoorbells),
	"spoils the doorbells":            withSession(spoilDoorbells),
	"rings without end":               withSession(ringForever),
	"sends random packets":            randomPackets,
	"sends random frames after hello": randomFrames,
	"sends too many descriptors":      tooManyDescriptors,
	"says hello and never answers":    neverAnswer,
	"connects and says nothing":       staySilent,
	"opens consumers without end":     openForever,
	"asks and never reads":            askForever,
}

// runAttack is the whole life of an attacking process.
func runAttack(name string) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the test is gone
	}()
	attack := attacks[name]
	if attack == nil {
		return fmt.Errorf("there is no attack %q", name)
	}
	if err := attack(os.Getenv(directoryVariable)); err != nil {
		fmt.Println(err) // for the test, to which an attack that fails is no attack
	}
	select {}
}

// announce tells the test that the attack is on.
func announce() { fmt.Println("attacking") }

// withSession attacks from within a session that was set up as it should be.
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
	connection, err := emulated.New(emulated.Options{Directory: directory}).Connect(ctx, comch.ClientConfig{Name: serverName})
	if err != nil {
		return err
	}
	if _, err := newLane(ctx, connection); err != nil {
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

// descriptorsLike lists the descriptors of this process whose files match.
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
		return nil, fmt.Errorf("no descriptor of %s", prefix)
	}
	return found, nil
}

// scribble writes random bytes to random places of all rings.
func scribble() error {
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
			_, _ = rand.Read(random[:])
			count := int64(random[15] % 8)
			offset := (int64(random[0])<<8 | int64(random[1])) % (stat.Size - count)
			if _, err := unix.Pwrite(ring, random[2:2+count], offset); err != nil {
				return err
			}
		}
	}
}

// punch takes the pages of everything shared away, again and again.
func punch() error {
	shared, err := descriptorsLike("/memfd:")
	if err != nil {
		return err
	}
	for {
		for _, descriptor := range shared {
			err := unix.Fallocate(descriptor, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20)
			if err != nil {
				return err
			}
		}
	}
}

// doorbells are the datagram sockets among the descriptors.
func doorbells() ([]int, error) {
	sockets, err := descriptorsLike("socket:")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, s := range sockets {
		if kind, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_TYPE); err == nil && kind == unix.SOCK_DGRAM {
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("there are no doorbells")
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

func spoilDoorbells() error {
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

// socketPath is where the server listens.
func socketPath(directory string) string {
	return filepath.Join(directory, emulated.DefaultRepresentor, emulated.DefaultDevice, serverName)
}
