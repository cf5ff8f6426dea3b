package emulated

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

func TestServicesAreThoseThatServersOffer(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "comch")
	p := New(Options{Directory: directory})
	lister := p.(comch.ServiceLister)
	if services, err := lister.Services(); err != nil || len(services) != 0 {
		t.Errorf("before there is a directory: %v, error %v", services, err)
	}
	server, err := p.Listen(t.Context(), comch.ServerConfig{Device: "03:00.0", Representor: "b1:00.0", Name: "disk"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "b1:00.0", "03:00.0", "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	services, err := lister.Services()
	if diff := cmp.Diff([]comch.Service{{Device: "03:00.0", Representor: "b1:00.0", Name: "disk"}}, services); err != nil || diff != "" {
		t.Errorf("error %v, services differ: %s", err, diff)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if services, err := lister.Services(); err != nil || len(services) != 0 {
		t.Errorf("after the end of the server: %v, error %v", services, err)
	}
}
