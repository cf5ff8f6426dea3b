// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"

	"github.com/spf13/pflag"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/internal/signature"
	"github.com/zc-relay/zc-relay/pkg/client"
)

// guard keeps a command that overwrites a volume from destroying what somebody needs: it opens the
// volume exclusively, and looks for file systems and the like.
type guard struct {
	overwrite bool
}

func (g *guard) add(f *pflag.FlagSet, help string) {
	f.BoolVar(&g.overwrite, "overwrite", false, help)
}

// protection is how a guarded command opens its volume.
type protection struct {
	owner     *client.Owner
	exclusive bool
	first     volume // keeps others out until the command has opened the volume itself
}

// noProtection is for a command that does not write.
var noProtection = &protection{}

// begin opens the volume and looks at it, unless --overwrite is given. The caller opens it again as
// the result says and then calls end.
func (g *guard) begin(ctx context.Context, connection *connectionFlags) (*protection, error) {
	p := &protection{owner: client.NewOwner(""), exclusive: !g.overwrite}
	if g.overwrite {
		return p, nil
	}
	v, err := connection.openVolume(ctx, client.Config{
		SyncDepth: 1, ReadOnly: true, Exclusive: true, Owner: p.owner,
	})
	if err != nil {
		return nil, err
	}
	p.first = v
	info := v.Info()
	found, err := signature.Find(v, info.Size)
	if err == nil && found != "" {
		err = program.Usagef("volume %q carries %s, which this command would destroy "+
			"(--overwrite allows that)", info.Name, found)
	}
	if err != nil {
		return nil, errors.Join(err, p.end(ctx))
	}
	return p, nil
}

// end closes what begin has opened.
func (p *protection) end(ctx context.Context) error {
	if p.first == nil {
		return nil
	}
	first := p.first
	p.first = nil
	return closeVolume(ctx, first, nil)
}

// apply makes config open the volume as the guard wants it.
func (p *protection) apply(config client.Config) client.Config {
	config.Owner, config.Exclusive = p.owner, p.exclusive
	return config
}
