// Package rdmadevice tells which RDMA devices the machine has: what they are
// called, what they belong to, and how their ports stand. It reads sysfs and
// needs neither libraries nor rights.
package rdmadevice

// Device is an RDMA device.
type Device struct {
	Name     string `json:"name"` // for instance "mlx5_0"
	NodeGUID string `json:"node_guid"`
	Firmware string `json:"firmware"`
	Board    string `json:"board"`
	// PCI is the address of the function that the device belongs to, empty
	// for a software device. Auxiliary is the sub-function on it, if it is one.
	PCI       string `json:"pci"`
	Auxiliary string `json:"auxiliary"`
	// NUMANode is the node that the device is attached to; null if there is
	// none or nobody says.
	NUMANode *int `json:"numa_node"`
	// Verbs is the character device through which programs use it.
	Verbs string   `json:"verbs_device"`
	Net   []NetDev `json:"netdevs"`
	Ports []Port   `json:"ports"`
}

// NetDev is a network interface of an RDMA device.
type NetDev struct {
	Name  string `json:"name"`
	MTU   int    `json:"mtu_bytes"` // 0 if it cannot be read
	State string `json:"state"`     // RFC 2863: "up", "down", …
}

// Port is a port of an RDMA device.
type Port struct {
	Number        uint   `json:"number"`
	State         string `json:"state"`          // "ACTIVE", "DOWN", …
	PhysicalState string `json:"physical_state"` // "LinkUp", "Disabled", …
	LinkLayer     string `json:"link_layer"`     // "Ethernet" or "InfiniBand"
	RateBitsPerS  uint64 `json:"rate_bits_per_s"`
	GIDs          []GID  `json:"gids"`
}

// Active reports whether the port can carry traffic.
func (p *Port) Active() bool { return p.State == "ACTIVE" }

// GID is an entry of a port's GID table.
type GID struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"` // for instance "RoCE v2"
	NetDev string `json:"netdev"`
}
