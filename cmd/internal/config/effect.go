// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"

	"github.com/zc-relay/zc-relay/cmd/internal/providers"
	"github.com/zc-relay/zc-relay/pkg/admin"
)

// Operators rely on the settings that they give, so a setting without effect is an error. These
// checks report settings that the rest of the configuration leaves without effect.

// checkEffect reports settings that are for other RDMA providers.
func (c *RDMA) checkEffect(report reporter) {
	verbs, devices := []string{"verbs"}, []string{"verbs", docaProvider}
	for _, s := range []struct {
		key     string
		value   any
		isGiven bool
		of      []string
	}{
		{"crc", c.CRC, c.CRC, []string{"iwarp", "auto"}},
		{"device", c.Device, c.Device != "", devices},
		{"gid_index", c.GIDIndex, c.GIDIndex != AutoGID, devices},
		{"path_mtu", c.PathMTU, c.PathMTU != 0, devices},
		{"type_of_service", c.TypeOfService, c.TypeOfService != 0, verbs},
		{"retry_count", c.RetryCount, c.RetryCount != 0, verbs},
		{"ack_timeout", c.AckTimeout, c.AckTimeout != 0, verbs},
		{"rnr_retry_count", c.RNRRetryCount, c.RNRRetryCount != 0, devices},
	} {
		if s.isGiven && !slices.Contains(s.of, c.Provider) {
			report(s.key, s.value, "%s, and rdma.provider is %s: choose another one "+
				"(--rdma-provider), or remove this", isForProviders(s.of), c.Provider)
		}
	}
}

// isForProviders says which providers a setting is for.
func isForProviders(names []string) string {
	if len(names) == 1 {
		return "is for the provider " + names[0]
	}
	return "is for the providers " + strings.Join(names, " and ")
}

// checkEffect reports a declaration about a network that no unprotected data crosses.
func (c *Security) checkEffect(report reporter, transport *RDMA) {
	devices := []string{"verbs", docaProvider}
	if c.DeclaredFabric() != "" && !slices.Contains(devices, transport.Provider) {
		report("fabric", c.Fabric, "%s, which have no TLS, and rdma.provider is %s: let TLS protect "+
			"its data by security.data (--data-security), and remove this", isForProviders(devices),
			transport.Provider)
	}
}

func (c *Comch) checkEffect(report reporter) {
	if c.Wait != auto && c.Provider == providers.DefaultComch {
		report("wait", c.Wait, "is for comch.provider doca, and it is %s: give --comch-provider "+
			"doca, or remove this", c.Provider)
	}
}

// checkEffect reports settings of listeners that there are not.
func (c *Operations) checkEffect(report reporter) {
	const noAdmin = "has no effect without operations.admin (--admin-listen)"
	const onSocket = "has no effect on a Unix socket, which is for root and the daemon's user: " +
		"give operations.admin (--admin-listen) a loopback address, or remove this"
	for _, s := range []struct{ key, file string }{
		{"admin_token_file", c.AdminTokenFile}, {"admin_web_config_file", c.AdminWebConfigFile},
	} {
		switch {
		case s.file == "":
		case c.Admin == "":
			report(s.key, s.file, noAdmin)
		case strings.HasPrefix(c.Admin, admin.UnixPrefix):
			report(s.key, s.file, onSocket)
		}
	}
	if c.WebConfigFile != "" && c.Listen == "" {
		report("web_config_file", c.WebConfigFile,
			"has no effect without operations.listen (--metrics-listen)")
	}
	if len(c.AllowedHosts) > 0 && c.Listen == "" && c.Admin == "" {
		report("allowed_hosts", strings.Join(c.AllowedHosts, ","), "has no effect without "+
			"operations.listen (--metrics-listen) or operations.admin (--admin-listen)")
	}
}
