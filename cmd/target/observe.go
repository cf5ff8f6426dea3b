package main

import (
	"maps"
	"slices"

	"github.com/zc-relay/zc-relay/cmd/internal/statusreport"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// describe adds what a target serves to its status.
func describe(t *target.Target, volumes map[string]volume.Volume) func(*statusreport.Document) {
	return func(d *statusreport.Document) {
		d.Workers = statusreport.Workers(t.Workers())
		d.Sessions = &statusreport.SessionCount{Open: t.Sessions(), Total: t.SessionsTotal()}
		counters := t.Counters()
		for _, name := range slices.Sorted(maps.Keys(volumes)) {
			info := volumes[name].Info()
			d.Volumes = append(d.Volumes, statusreport.Volume{
				Name: name, UUID: info.UUID.String(), Size: info.Size, BlockSize: info.BlockSize, ReadOnly: info.ReadOnly,
				Queues: statusreport.Queues(counters[name]),
			})
		}
	}
}
