// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Environment variables of programs that load the shared library.
const (
	// EnvironmentConfig holds the configuration as YAML, if it begins with a brace, or the path of
	// a file with it. As YAML, it can name such a file itself, with the key config, and override
	// settings of it.
	EnvironmentConfig = "ZC_DOCA_EMULATION"
	// EnvironmentDebug says what to do with misuse: "" writes it to the library's own log alone,
	// "report" to the standard error, too, and "abort" ends the process after that.
	EnvironmentDebug = "ZC_DOCA_DEBUG"
)

// defaultIdleSleep is how long an idle engine of the shared library sleeps. Programs for DOCA poll
// without end on each thread, which starves their peers on a small machine.
const defaultIdleSleep = 20 * time.Microsecond

// maxConfigSize bounds the configuration in bytes.
const maxConfigSize = 1 << 20

// fileConfig is the configuration in YAML.
type fileConfig struct {
	Config         string        `yaml:"config"` // the path of another one, for what this leaves out
	Role           string        `yaml:"role"`
	Release        string        `yaml:"release"`
	Directory      string        `yaml:"directory"`
	RDMAAddress    string        `yaml:"rdma_address"`
	IdleSleep      *string       `yaml:"idle_sleep"`
	SignalPending  bool          `yaml:"signal_pending"`
	Again          bool          `yaml:"again"`
	ServerOnHost   bool          `yaml:"server_on_host"`
	KeepPages      bool          `yaml:"keep_pages"`
	Devices        *[]fileDevice `yaml:"devices"`
	MaxMessageSize int           `yaml:"max_message_size"`
	Faults         []fileFault   `yaml:"faults"`
}

type fileFault struct {
	Function string `yaml:"function"`
	Task     string `yaml:"task"`
	Error    string `yaml:"error"`
	Every    *int   `yaml:"every"`
}

type fileDevice struct {
	PCI          string            `yaml:"pci"`
	Alias        string            `yaml:"alias"`
	IBDevice     string            `yaml:"ibdev"`
	Interface    string            `yaml:"iface"`
	IPv4         string            `yaml:"ipv4"`
	IPv6         string            `yaml:"ipv6"`
	MAC          string            `yaml:"mac"`
	LID          uint16            `yaml:"lid"`
	ActiveRate   uint64            `yaml:"active_rate"`
	GIDIndex     uint32            `yaml:"gid_index"`
	VHCA         *uint16           `yaml:"vhca_id"`
	Role         string            `yaml:"role"`
	SubFunction  *uint32           `yaml:"sf"`
	Without      []string          `yaml:"without"`
	Representors []fileRepresentor `yaml:"representors"`
}

type fileRepresentor struct {
	PCI       string  `yaml:"pci"`
	VUID      string  `yaml:"vuid"`
	Interface string  `yaml:"iface"`
	Type      string  `yaml:"type"`
	Hotplug   bool    `yaml:"hotplug"`
	VHCA      *uint16 `yaml:"vhca_id"`
}

// FromEnvironment returns the configuration that the environment describes, as the shared library
// reads it. getenv is os.Getenv, for instance.
func FromEnvironment(getenv func(string) string) (Config, error) {
	var file fileConfig
	err := file.readEnvironment(getenv(EnvironmentConfig))
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", EnvironmentConfig, err)
	}
	config, err := file.parse()
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", EnvironmentConfig, err)
	}
	switch debug := getenv(EnvironmentDebug); debug {
	case "":
		config.Report = func(Misuse) {} // the log has it
	case "report":
	case "abort":
		config.Report = func(m Misuse) {
			fmt.Fprintf(os.Stderr, "libdoca emulated: misuse: %s: %s\n", m.Function, m.Rule)
			abort()
		}
	default:
		return Config{}, status.Errorf(status.InvalidValue, "%s: %q is neither report nor abort",
			EnvironmentDebug, debug)
	}
	return config, nil
}

// readEnvironment reads the configuration that the environment holds or names.
func (f *fileConfig) readEnvironment(text string) error {
	if text == "" {
		return nil
	}
	if !strings.HasPrefix(text, "{") {
		return f.readFile(text)
	}
	if err := f.decode([]byte(text)); err != nil || f.Config == "" {
		return err
	}
	// What the text sets takes the place of what the file sets.
	var file fileConfig
	if err := file.readFile(f.Config); err != nil {
		return err
	}
	*f = file
	return f.decode([]byte(text))
}

// readFile reads a configuration that must not name another one.
func (f *fileConfig) readFile(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return status.Errorf(status.NotFound, "%w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxConfigSize))
	if err != nil {
		return status.Errorf(status.IOFailed, "%w", err)
	}
	if err := f.decode(text); err != nil {
		return err
	}
	if f.Config != "" {
		return status.Errorf(status.InvalidValue, "%s: a file cannot name another one (config)",
			name)
	}
	return nil
}

// decode replaces the settings that are in the text.
func (f *fileConfig) decode(text []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(f); err != nil && !errors.Is(err, io.EOF) {
		return status.Errorf(status.InvalidValue, "parse: %w", err)
	}
	return nil
}

// ParseConfig returns the configuration that YAML describes; none of it is required. Report is left
// to the caller.
func ParseConfig(text []byte) (Config, error) {
	var file fileConfig
	if err := file.decode(text); err != nil {
		return Config{}, err
	}
	if file.Config != "" {
		return Config{}, status.Errorf(status.InvalidValue, "config: only the environment names a file")
	}
	return file.parse()
}

// parse returns the configuration.
func (f *fileConfig) parse() (Config, error) {
	config := Config{Directory: f.Directory, SignalPending: f.SignalPending,
		Again: f.Again, ServerOnHost: f.ServerOnHost, KeepPages: f.KeepPages,
		IdleSleep: defaultIdleSleep, Limits: Limits{MaxMessageSize: f.MaxMessageSize}}
	var err error
	if config.Release, err = parseRelease(f.Release); err != nil {
		return Config{}, err
	}
	for i, fault := range f.Faults {
		code, err := parseError(fault.Error)
		if err != nil {
			return Config{}, fmt.Errorf("fault %d: %w", i+1, err)
		}
		every := 1
		if fault.Every != nil {
			every = *fault.Every
		}
		if every < 1 || every > math.MaxUint32 {
			return Config{}, status.Errorf(status.InvalidValue,
				"fault %d: every: %d is not between 1 and %d", i+1, every, math.MaxUint32)
		}
		config.Faults = append(config.Faults, Fault{Function: fault.Function, Task: fault.Task,
			Error: code, Every: uint32(every)})
	}
	if f.RDMAAddress != "" {
		if config.RDMAAddress, err = netip.ParseAddr(f.RDMAAddress); err != nil {
			return Config{}, status.Errorf(status.InvalidValue, "rdma_address: %w", err)
		}
	}
	if f.IdleSleep != nil {
		config.IdleSleep, err = time.ParseDuration(*f.IdleSleep)
		if err != nil || config.IdleSleep < 0 || config.IdleSleep > maxIdleSleep {
			return Config{}, status.Errorf(status.InvalidValue,
				"idle_sleep: %q is no duration between 0s and %v", *f.IdleSleep, maxIdleSleep)
		}
	}
	role, hasRole, err := parseRole(f.Role)
	if err != nil {
		return Config{}, err
	}
	if f.Devices == nil {
		config.Devices = defaultDevices()
		if hasRole {
			config.Devices = []Device{onlyDevice(role)}
		}
		return config, nil
	}
	config.Devices = []Device{}
	for i := range *f.Devices {
		device, err := (*f.Devices)[i].parse(role)
		if err != nil {
			return Config{}, fmt.Errorf("device %d: %w", i+1, err)
		}
		config.Devices = append(config.Devices, device)
	}
	return config, nil
}

// onlyDevice returns the device of a machine that has one. Programs find it by the addresses of
// both default devices: they differ in what they expect on which side.
func onlyDevice(role Role) Device {
	devices := defaultDevices()
	device, other := devices[0], devices[1]
	if role == Host {
		device, other = other, device
	}
	device.Alias, device.IBDevice = other.PCI, devices[0].IBDevice
	return device
}

// parse returns the device; role is that of the machine.
func (d *fileDevice) parse(role Role) (Device, error) {
	device := Device{Alias: d.Alias, IBDevice: d.IBDevice, Interface: d.Interface, Role: role,
		LID: d.LID, ActiveRate: d.ActiveRate, VHCA: d.VHCA, GIDIndex: d.GIDIndex}
	var err error
	if device.PCI, err = longPCI(d.PCI); err != nil {
		return Device{}, err
	}
	if d.Alias != "" {
		if device.Alias, err = longPCI(d.Alias); err != nil {
			return Device{}, err
		}
	}
	if d.IPv4 != "" {
		device.IPv4, err = netip.ParseAddr(d.IPv4)
		if err != nil || !device.IPv4.Is4() {
			return Device{}, status.Errorf(status.InvalidValue, "%q is no IPv4 address", d.IPv4)
		}
	}
	if d.IPv6 != "" {
		device.IPv6, err = netip.ParseAddr(d.IPv6)
		if err != nil || !device.IPv6.Is6() {
			return Device{}, status.Errorf(status.InvalidValue, "%q is no IPv6 address", d.IPv6)
		}
	}
	if d.MAC != "" {
		mac, err := net.ParseMAC(d.MAC)
		if err != nil || copy(device.MAC[:], mac) != len(mac) {
			return Device{}, status.Errorf(status.InvalidValue, "%q is no MAC address", d.MAC)
		}
	}
	if own, hasRole, err := parseRole(d.Role); err != nil {
		return Device{}, err
	} else if hasRole {
		device.Role = own
	}
	if d.SubFunction != nil {
		device.Type, device.SFIndex = SubFunction, *d.SubFunction
	}
	for _, capability := range d.Without {
		switch capability {
		case "comch":
			device.NoComch = true
		case "dma":
			device.NoDMA = true
		case "export":
			device.NoExport = true
		case "rdma":
			device.NoRDMA = true
		default:
			return Device{}, status.Errorf(status.InvalidValue,
				"without: %q is none of comch, dma, export, and rdma", capability)
		}
	}
	for _, r := range d.Representors {
		representor, err := r.parse()
		if err != nil {
			return Device{}, err
		}
		device.Representors = append(device.Representors, representor)
	}
	return device, nil
}

func (r *fileRepresentor) parse() (Representor, error) {
	pci, err := longPCI(r.PCI)
	if err != nil {
		return Representor{}, err
	}
	parsed := Representor{PCI: pci, VUID: r.VUID, Interface: r.Interface, Hotplug: r.Hotplug,
		VHCA: r.VHCA}
	switch r.Type {
	case "", "pf":
	case "vf":
		parsed.Type = VirtualFunction
	case "sf":
		parsed.Type = SubFunction
	default:
		return Representor{}, status.Errorf(status.InvalidValue,
			"type %q is none of pf, vf, and sf", r.Type)
	}
	return parsed, nil
}

// parseRole returns the role of a name; hasRole is false if there is none.
func parseRole(name string) (role Role, hasRole bool, err error) {
	switch name {
	case "":
		return DPU, false, nil
	case "dpu":
		return DPU, true, nil
	case "host":
		return Host, true, nil
	}
	return 0, false, status.Errorf(status.InvalidValue, "role %q is neither dpu nor host", name)
}

// parseRelease returns the release of a name such as "3.2", and 0 for "".
func parseRelease(name string) (Release, error) {
	if name == "" {
		return 0, nil
	}
	var major, minor int
	n, err := fmt.Sscanf(name+"\n", "%d.%d\n", &major, &minor)
	release := Release(100*major + minor)
	if _, known := versions[release]; n != 2 || err != nil || !known {
		return 0, status.Errorf(status.InvalidValue, "unknown release %q, use 2.9 to 3.3", name)
	}
	return release, nil
}
