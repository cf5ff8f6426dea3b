package comch

// Service is a name that a server listens under.
type Service struct {
	Device      string `json:"device"`
	Representor string `json:"representor"`
	Name        string `json:"name"`
}

// ServiceLister is a Provider that can tell which services there are on this
// machine.
type ServiceLister interface {
	// Services lists them. Those that can be read are returned also with an
	// error.
	Services() ([]Service, error)
}
