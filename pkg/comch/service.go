package comch

// Service identifies a server: its device, representor and name.
type Service struct {
	Device      string `json:"device"`
	Representor string `json:"representor"`
	Name        string `json:"name"`
}

// ServiceLister is a Provider that can list the services on this machine.
type ServiceLister interface {
	// Services lists all services. If it fails, it still returns those that it could read.
	Services() ([]Service, error)
}

// Device is a device of a provider, and what it can be. An empty name is not known.
type Device struct {
	// PCI is the address that names the device in configurations, in its shortest form, for
	// instance "03:00.0".
	PCI  string `json:"pci"`
	RDMA string `json:"rdma_device"` // for instance "mlx5_0"
	Net  string `json:"netdev"`      // its network interface, for instance "p0"
	// CanServe reports whether servers can listen on the device, as on a DPU, and CanConnect
	// whether clients can connect from it, as on a host.
	CanServe   bool `json:"can_serve"`
	CanConnect bool `json:"can_connect"`
	// Representors are the host functions that the device's servers can serve.
	Representors []Representor `json:"representors"`
}

// Representor is a host function, as a DPU's device represents it.
type Representor struct {
	PCI  string `json:"pci"`  // the function's address on the host
	VUID string `json:"vuid"` // what identifies the function, wherever it is plugged in
}

// DeviceLister is a Provider that can list its devices.
type DeviceLister interface {
	// Devices lists all devices. If it fails, it still returns those that it could read. It creates
	// nothing on them. A provider that accepts any name may return only those that it knows.
	Devices() ([]Device, error)
}
