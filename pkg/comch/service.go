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
