// SPDX-License-Identifier: Apache-2.0

package admincommands

import (
	"cmp"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/admin"
)

// Daemon says where commands find a daemon.
type Daemon struct {
	// Address is the admin address of the packaged daemon.
	Address string
	// Variable is the environment variable with another address. Followed by tokenFileSuffix, it is
	// the one with the file of the token.
	Variable string
	// AddressIn returns operations.admin and operations.admin_token_file of a configuration file of
	// the daemon.
	AddressIn func(file string) (address, tokenFile string, err error)
}

const tokenFileSuffix = "_TOKEN_FILE"

// Connection holds the flags that say which daemon to talk to.
type Connection struct {
	daemon        Daemon
	flags         *pflag.FlagSet
	address, file string
	proof         admin.Options
}

// The flags of a Connection.
const (
	adminFlag     = "admin"
	configFlag    = "config"
	tokenFileFlag = "admin-token-file"
)

// Add adds the flags to a command.
func (c *Connection) Add(cmd *cobra.Command, daemon Daemon) {
	c.daemon, c.flags = daemon, cmd.Flags()
	cmd.Flags().StringVar(&c.address, adminFlag, daemon.Address, fmt.Sprintf(
		"admin address of the daemon, as given to its --admin-listen; $%s is another default",
		daemon.Variable))
	cmd.Flags().StringVar(&c.proof.TokenFile, tokenFileFlag, "", fmt.Sprintf(
		"`file` with the token, as given to the daemon's --admin-token-file; needed for an address "+
			"IP:PORT; $%s is the default", daemon.Variable+tokenFileSuffix))
	for _, f := range []struct {
		to         *string
		name, text string
	}{
		{&c.proof.Certificate, "cert", "PEM `file` with a certificate for a daemon whose " +
			"--admin-web-config-file asks for one"},
		{&c.proof.Key, "key", "PEM `file` with the certificate's private key"},
		{&c.proof.CA, "ca", "PEM `file` with the authorities that may sign the daemon's certificate; " +
			"without it, the connection is plain text"},
		{&c.proof.ServerName, "server-name", "`name` in the daemon's certificate, instead of the IP " +
			"address"},
	} {
		cmd.Flags().StringVar(f.to, "admin-tls-"+f.name, "", f.text)
	}
	cmd.Flags().StringVarP(&c.file, configFlag, "c", "",
		"YAML file with the configuration of the daemon, which has its admin address")
	cmd.MarkFlagsMutuallyExclusive(adminFlag, configFlag)
}

// Client returns a client of the daemon.
func (c *Connection) Client() (*admin.Client, error) {
	source := "--" + adminFlag
	c.proof.TokenFile = cmp.Or(c.proof.TokenFile, os.Getenv(c.daemon.Variable+tokenFileSuffix))
	if address := os.Getenv(c.daemon.Variable); address != "" && c.file == "" &&
		!c.flags.Changed(adminFlag) {
		c.address, source = address, "$"+c.daemon.Variable
	}
	if c.file != "" {
		address, tokenFile, err := c.daemon.AddressIn(c.file)
		if err != nil {
			return nil, program.Usage(fmt.Errorf("--%s: %w", configFlag, err))
		}
		if address == "" {
			return nil, program.Usagef("%s has no operations.admin: the daemon listens nowhere for administration",
				c.file)
		}
		c.address, source = address, c.file+": operations.admin"
		c.proof.TokenFile = cmp.Or(c.proof.TokenFile, tokenFile)
	}
	client, err := admin.NewWith(c.address, c.proof)
	if err != nil {
		return nil, program.Usage(fmt.Errorf("%s: %w", source, err))
	}
	return client, nil
}
