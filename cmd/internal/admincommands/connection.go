package admincommands

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/admin"
)

// Daemon says where commands find a daemon.
type Daemon struct {
	// Address is the admin address of the packaged daemon.
	Address string
	// AddressIn returns operations.admin of a configuration file of the daemon.
	AddressIn func(file string) (string, error)
}

// Connection holds the flags that say which daemon to talk to.
type Connection struct {
	daemon        Daemon
	address, file string
}

// The flags of a Connection.
const (
	adminFlag  = "admin"
	configFlag = "config"
)

// Add adds the flags to a command.
func (c *Connection) Add(cmd *cobra.Command, daemon Daemon) {
	c.daemon = daemon
	cmd.Flags().StringVar(&c.address, adminFlag, daemon.Address,
		"admin address of the daemon, as given to its --admin-listen")
	cmd.Flags().StringVarP(&c.file, configFlag, "c", "",
		"YAML file with the configuration of the daemon, which has its admin address")
	cmd.MarkFlagsMutuallyExclusive(adminFlag, configFlag)
}

// Client returns a client of the daemon.
func (c *Connection) Client() (*admin.Client, error) {
	source := "--" + adminFlag
	if c.file != "" {
		address, err := c.daemon.AddressIn(c.file)
		if err != nil {
			return nil, program.Usage(fmt.Errorf("--%s: %w", configFlag, err))
		}
		if address == "" {
			return nil, program.Usagef("%s has no operations.admin: the daemon listens nowhere for administration",
				c.file)
		}
		c.address, source = address, c.file+": operations.admin"
	}
	client, err := admin.New(c.address)
	if err != nil {
		return nil, program.Usage(fmt.Errorf("%s: %w", source, err))
	}
	return client, nil
}
