//go:build !faultinject

package volume

import "github.com/zc-relay/zc-relay/pkg/status"

func parseFault(string) (Backend, error) {
	return nil, status.Errorf(status.NotSupported,
		"volumes of kind fault are not part of this build: build with -tags faultinject")
}
