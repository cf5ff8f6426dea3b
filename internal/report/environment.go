// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
)

// Environment describes where a result was obtained. Values that the system does not provide are
// empty.
type Environment struct {
	Version           string `json:"version"`
	GoVersion         string `json:"go_version"`
	Architecture      string `json:"architecture"`
	Hostname          string `json:"hostname"`
	Kernel            string `json:"kernel"`
	CPUModel          string `json:"cpu_model"`
	CPUs              int    `json:"cpus"` // available to this process
	MaxProcessors     int    `json:"gomaxprocs"`
	NUMANodes         string `json:"numa_nodes"` // a list such as "0-1"
	ClockSource       string `json:"clock_source"`
	FrequencyGovernor string `json:"cpu_frequency_governor"`
}

// Files of procfs and sysfs.
const (
	kernelReleaseFile = "/proc/sys/kernel/osrelease"
	cpuInfoFile       = "/proc/cpuinfo"
	numaNodesFile     = "/sys/devices/system/node/online"
	clockSourceFile   = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
	governorFile      = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
)

// CurrentEnvironment describes this process and its machine.
func CurrentEnvironment() Environment {
	hostname, _ := os.Hostname()
	return Environment{
		Version:           buildinfo.Version(),
		GoVersion:         runtime.Version(),
		Architecture:      runtime.GOOS + "/" + runtime.GOARCH,
		Hostname:          hostname,
		Kernel:            firstLine(kernelReleaseFile),
		CPUModel:          cpuModel(),
		CPUs:              runtime.NumCPU(),
		MaxProcessors:     runtime.GOMAXPROCS(0),
		NUMANodes:         firstLine(numaNodesFile),
		ClockSource:       firstLine(clockSourceFile),
		FrequencyGovernor: firstLine(governorFile),
	}
}

func firstLine(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(content), "\n")
	return strings.TrimSpace(line)
}

func cpuModel() string {
	file, err := os.Open(cpuInfoFile)
	if err != nil {
		return ""
	}
	defer file.Close()
	return parseCPUModel(file)
}

// parseCPUModel finds the CPU model in the text of /proc/cpuinfo. On arm64 there is no name; the
// numbers of implementer and part (MIDR_EL1) take its place.
func parseCPUModel(r io.Reader) string {
	var implementer, part string
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		key, value, _ := strings.Cut(scanner.Text(), ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "model name":
			return value
		case "CPU implementer":
			implementer = value
		case "CPU part":
			part = value
		}
	}
	if implementer == "" {
		return ""
	}
	return "implementer " + implementer + " part " + part
}
