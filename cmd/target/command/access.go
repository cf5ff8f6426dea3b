// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/cmd/internal/service"
	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
)

// maxCertificateFile bounds a certificate file in bytes.
const maxCertificateFile = 1 << 20

// accessReport says who may do what at a target. docs/schemas/access.schema.json describes it.
type accessReport struct {
	Schema string `json:"schema"`
	// TLS is false if everybody who reaches the control port is admitted, to all volumes.
	TLS        bool       `json:"tls"`
	Validities []validity `json:"validities,omitempty"`
	// Problems say why relays will reject the target's certificate, or the target relays.
	Problems []string    `json:"problems,omitempty"`
	Relays   []relayInfo `json:"relays"`
}

type validity struct {
	What  string    `json:"what"`
	Until time.Time `json:"until"`
}

// relayInfo is a name in the configuration, or a certificate.
type relayInfo struct {
	// File is "" for a name in the configuration, and for all other relays.
	File     string     `json:"file,omitempty"`
	Names    []string   `json:"names"`
	Expires  *time.Time `json:"expires_at,omitempty"`
	Admitted bool       `json:"admitted"`
	// Reason says why a relay is not admitted.
	Reason  string         `json:"reason,omitempty"`
	Volumes []volumeAccess `json:"volumes"`
}

type volumeAccess struct {
	Volume string `json:"volume"`
	// Access is the highest right: none, read, write, own, or preempt.
	Access string `json:"access"`
}

func newAccessCommand() *cobra.Command {
	from, _ := newSource()
	output := report.Text
	cmd := &cobra.Command{
		Use:   "access [CERTIFICATE...]",
		Short: "Show which relays are admitted, and what they may do",
		Long: `access shows, for each relay that the configuration names, whether the target admits
it, and what its clients may do with each volume: read, write, own (open it
exclusively), or preempt (end the sessions of others); each includes those before
it. It also shows when this target's certificate, its authorities, and their lists of
revoked certificates expire.

With certificates (PEM files of relays, each with its intermediate certificates behind
it), it examines these instead, as the target would when the relay connects. The
exit code is 1 if one of them would be rejected, or the target's own certificates
have problems. It asks no running target, and shows
no volumes that were added by command.`,
		Example: `  zc-relay-target access
  zc-relay-target access --config target.yaml dpu-7.pem`,
		RunE: func(cmd *cobra.Command, certificates []string) error {
			file := from.File
			if !from.HasFlags() {
				file = from.FindUnitFile()
			}
			c, incomplete, err := from.LoadPart(file)
			if err = errors.Join(err, incomplete); err != nil {
				return program.Usage(err)
			}
			r, err := examineAccess(c, certificates)
			if err != nil {
				return err
			}
			if output == report.JSON {
				err = report.WriteJSON(cmd.OutOrStdout(), r)
			} else {
				err = r.write(cmd.OutOrStdout())
			}
			return errors.Join(err, r.rejection())
		},
	}
	from.AddFlags(cmd.Flags())
	output.AddFlag(cmd.Flags())
	return cmd
}

func examineAccess(c *config.Target, certificates []string) (*accessReport, error) {
	r := &accessReport{Schema: "zc-relay.access/1", TLS: c.TLS.Enabled()}
	if !r.TLS {
		if len(certificates) > 0 {
			return nil, status.Errorf(status.BadConfig, "the target has no TLS, so it asks no relay "+
				"for a certificate: set tls.certificate (--tls-cert), tls.key, and tls.ca")
		}
		r.Relays = []relayInfo{admitted(c, nil)}
		return r, nil
	}
	credentials, err := service.LoadTLS(c.TLS, x509.ExtKeyUsageServerAuth, zap.NewNop())
	if err != nil {
		return nil, err
	}
	for _, v := range credentials.Validities() {
		r.Validities = append(r.Validities, validity{v.What, v.Until.UTC()})
	}
	r.Problems = credentials.Problems()
	if len(certificates) == 0 {
		r.Relays = configuredRelays(c)
		return r, nil
	}
	for _, path := range certificates {
		relay, err := examineCertificate(c, credentials, path)
		if err != nil {
			return nil, err
		}
		r.Relays = append(r.Relays, relay)
	}
	return r, nil
}

// configuredRelays returns the relays that the configuration names, and, if it admits others, all
// others as one without names.
func configuredRelays(c *config.Target) []relayInfo {
	allowed := c.Listen.AllowedNames()
	names := slices.Clone(allowed)
	for i := range c.Volumes {
		for _, right := range c.Volumes[i].Rights() {
			names = append(names, right.Relay)
		}
	}
	slices.SortFunc(names, func(a, b mutualtls.Name) int {
		return cmp.Compare(a.String(), b.String())
	})
	var all []relayInfo
	for _, name := range slices.Compact(names) {
		relay := admitted(c, []mutualtls.Name{name})
		if len(allowed) > 0 && !slices.Contains(allowed, name) {
			relay.Admitted, relay.Volumes = false, []volumeAccess{}
			relay.Reason = "listen.tls_allowed_names does not have it"
		}
		all = append(all, relay)
	}
	if len(allowed) == 0 {
		all = append(all, admitted(c, nil))
	}
	return all
}

func examineCertificate(
	c *config.Target, credentials *mutualtls.Credentials, path string,
) (relayInfo, error) {
	b, err := files.Read(path, maxCertificateFile)
	var presented []*x509.Certificate
	if err == nil {
		presented, err = mutualtls.ParseCertificates(b)
	}
	if err != nil {
		return relayInfo{}, program.Usage(fmt.Errorf("certificate of a relay %q: %w", path, err))
	}
	relay := admitted(c, mutualtls.Names(presented[0]))
	relay.File = path
	expires := presented[0].NotAfter.UTC()
	relay.Expires = &expires
	if err := credentials.Examine(presented, c.Listen.AllowedNames(), time.Now()); err != nil {
		relay.Admitted, relay.Reason, relay.Volumes = false, status.Text(err), []volumeAccess{}
	}
	return relay, nil
}

// admitted describes a relay whose certificate has these names, and is accepted.
func admitted(c *config.Target, names []mutualtls.Name) relayInfo {
	relay := relayInfo{Names: []string{}, Admitted: true, Volumes: []volumeAccess{}}
	for _, name := range names {
		relay.Names = append(relay.Names, name.String())
	}
	for i := range c.Volumes {
		v := &c.Volumes[i]
		relay.Volumes = append(relay.Volumes,
			volumeAccess{v.Name, target.AccessOf(v.Rights(), names).String()})
	}
	return relay
}

func (r *accessReport) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if !r.TLS {
		fmt.Fprintln(table, "without TLS, whoever reaches the control port is admitted as a relay")
	}
	for _, v := range r.Validities {
		verb := "expires"
		if time.Now().After(v.Until) {
			verb = "HAS EXPIRED"
		}
		fmt.Fprintf(table, "%s\t%s %s\n", v.What, verb, v.Until.Format(time.DateTime))
	}
	for _, problem := range r.Problems {
		fmt.Fprintln(table, "problem: "+problem)
	}
	if len(r.Validities) > 0 {
		fmt.Fprintln(table)
	}
	fmt.Fprintln(table, "RELAY\tADMITTED\tVOLUMES")
	for i := range r.Relays {
		fmt.Fprintln(table, r.Relays[i].line(r.TLS))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print who is admitted: %w", err)
	}
	return nil
}

// maxVolumesInLine is how many volumes a line names.
const maxVolumesInLine = 20

func (i *relayInfo) line(tls bool) string {
	name := cmp.Or(i.File, strings.Join(i.Names, " "))
	switch {
	case name == "" && tls:
		name = "any other with a certificate"
	case name == "":
		name = "any"
	case i.File != "":
		name += " (" + cmp.Or(strings.Join(i.Names, " "), "without names") + ", expires " +
			i.Expires.Format(time.DateTime) + ")"
	}
	if !i.Admitted {
		return name + "\tno\t" + i.Reason
	}
	var volumes []string
	for _, v := range i.Volumes {
		if v.Access == target.NoAccess.String() {
			continue
		}
		if len(volumes) == maxVolumesInLine {
			volumes = append(volumes, fmt.Sprintf("and more, %d in all (--output json)",
				len(i.Volumes)))
			break
		}
		volumes = append(volumes, v.Volume+" ("+v.Access+")")
	}
	return name + "\tyes\t" + cmp.Or(strings.Join(volumes, ", "), "none")
}

// rejection fails if a certificate would be rejected.
func (r *accessReport) rejection() error {
	rejected := 0
	for i := range r.Relays {
		if r.Relays[i].File != "" && !r.Relays[i].Admitted {
			rejected++
		}
	}
	if rejected > 0 {
		return fmt.Errorf("%d of %d certificates would be rejected", rejected, len(r.Relays))
	}
	hasExpired := slices.ContainsFunc(r.Validities,
		func(v validity) bool { return time.Now().After(v.Until) })
	if hasExpired || len(r.Problems) > 0 {
		return errors.New("the target's own certificates have problems, so that relays cannot connect")
	}
	return nil
}
