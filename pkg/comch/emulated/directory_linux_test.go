// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func listenIn(t *testing.T, directory string, config comch.ServerConfig) comch.Server {
	t.Helper()
	server, err := New(Options{Directory: directory}).Listen(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server
}

func TestDirectoryPathMayExceedASocketAddress(t *testing.T) {
	directory := filepath.Join(t.TempDir(), strings.Repeat("d", 200), "comch")
	listenIn(t, directory, comch.ServerConfig{Name: "storage"})
	connection, err := New(Options{Directory: directory}).Connect(context.Background(),
		comch.ClientConfig{Name: "storage"})
	if err != nil {
		t.Fatal(err)
	}
	if err := connection.Close(); err != nil {
		t.Error(err)
	}
}

func TestServerFilesHaveDocumentedPathsAndModes(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "comch")
	server := listenIn(t, directory,
		comch.ServerConfig{Device: "03:00.1", Representor: "b1:00.1", Name: "storage"})
	path := filepath.Join(directory, "b1:00.1", "03:00.1", "storage")
	if server.Address() != path {
		t.Errorf("address is %s, want %s", server.Address(), path)
	}
	for _, want := range []struct {
		path string
		mode os.FileMode
	}{
		{directory, os.ModeDir | 0o700}, {filepath.Dir(path), os.ModeDir | 0o700},
		{path, os.ModeSocket | 0o600}, {path + ".lock", 0o600},
	} {
		info, err := os.Lstat(want.path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want.mode {
			t.Errorf("%s has mode %v, want %v", want.path, info.Mode(), want.mode)
		}
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("a closed server leaves %v behind, error %v", left, err)
	}
}

func TestPublicServerOpensItsFiles(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "comch")
	listenIn(t, directory, comch.ServerConfig{Name: "private"})
	server := listenIn(t, directory,
		comch.ServerConfig{Name: "public", Admission: comch.Admission{AllowAnyUser: true}})
	for path, want := range map[string]os.FileMode{
		directory: os.ModeDir | 0o755, filepath.Dir(server.Address()): os.ModeDir | 0o755,
		server.Address(): os.ModeSocket | 0o666,
		filepath.Join(filepath.Dir(server.Address()), "private"): os.ModeSocket | 0o600,
	} {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
}

func TestClientsTrustTheDaemonToWhichRootGaveTheDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory to a daemon")
	}
	const daemon, other, person = 990, 991, 1000
	for _, c := range []struct {
		name                        string
		top, runtime, comch, device int // owners
		topMode                     os.FileMode
		want                        bool
	}{
		{"runtime directory of a daemon", 0, daemon, daemon, daemon, 0o755, true},
		{"only the inner directory is the daemon's", 0, 0, daemon, daemon, 0o755, true},
		{"directory of a person", 0, person, person, person, 0o755, false},
		{"person in a daemon's directory", 0, daemon, person, person, 0o755, false},
		{"two daemons", 0, daemon, daemon, other, 0o755, false},
		{"daemon in a directory that others can write", 0, daemon, daemon, daemon, 0o777, false},
		{"daemon in a sticky directory", 0, daemon, daemon, daemon, 0o777 | os.ModeSticky, false},
		{"daemon in a directory of a person", person, daemon, daemon, daemon, 0o755, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Everybody can write to the parents of t.TempDir.
			top, err := os.MkdirTemp("/run", "zc-relay-test")
			if err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(top) })
			path := top
			for i, owner := range []int{c.top, c.runtime, c.comch, c.device} {
				mode := os.FileMode(0o755)
				if i == 0 {
					mode = c.topMode
				} else {
					path = filepath.Join(path, []string{"", "zc-relay", "comch", "b1:00.0"}[i])
				}
				makeMode(t, path, mode)
				if err := os.Chown(path, owner, owner); err != nil {
					t.Fatal(err)
				}
			}
			root, err := openRoot(filepath.Dir(path))
			if err == nil {
				var device *directory
				if device, err = root.open("b1:00.0"); err == nil {
					device.close()
				}
				root.close()
			}
			if (err == nil) != c.want || err != nil && !errors.Is(err, status.NotPermitted) {
				t.Errorf("a client opens it: %v", err)
			}
			server, err := makeRoot(filepath.Dir(path), true)
			if !errors.Is(err, status.NotPermitted) {
				t.Errorf("a server opens a directory of another user: %v", err)
			}
			if err == nil {
				server.close()
			}
		})
	}
}

// While systemd restarts a daemon, its runtime directory exists before the daemon has created
// anything in it. A client must take that for a server that is not there yet.
func TestARuntimeDirectoryThatIsStillEmptyIsNoViolation(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory to a daemon")
	}
	// Everybody can write to the parents of t.TempDir.
	runtimeDirectory, err := os.MkdirTemp("/run", "zc-relay-test")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(runtimeDirectory) })
	makeMode(t, runtimeDirectory, 0o755)
	if err := os.Chown(runtimeDirectory, 990, 990); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"comch", "comch/b1:00.0"} {
		root, err := openRoot(filepath.Join(runtimeDirectory, path))
		if err == nil {
			root.close()
		}
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("open %s: %v, want that it does not exist", path, err)
		}
	}
}

// What a client checks is what it opens, whatever way leads to the directory.
func TestTheWayToADaemonsDirectoryMayHaveLinks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory to a daemon")
	}
	const daemon, person = 990, 1500
	top, err := os.MkdirTemp("/run", "zc-relay-test") // everybody can write to t.TempDir's parents
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	makeMode(t, top, 0o755)
	makeMode(t, top+"/public", os.ModeSticky|0o777) // as /tmp
	for path, owner := range map[string]int{"given": daemon, "public/evil": daemon,
		"public/work": 0} {
		makeMode(t, filepath.Join(top, path), 0o755)
		if err := os.Chown(filepath.Join(top, path), owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	for path, link := range map[string]struct {
		target string
		owner  int
	}{"public/own": {"/given", 0}, "public/other": {"/given", person},
		"public/astray": {"/public/evil", 0}, "work": {"/public/work", 0}} {
		path = filepath.Join(top, path)
		if err := errors.Join(os.Symlink(top+link.target, path),
			os.Lchown(path, link.owner, link.owner)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(top + "/work") // .. is top by its name, and public for the kernel
	for path, want := range map[string]error{
		top + "/public/own/none":    os.ErrNotExist, // which means that the way is trusted
		top + "/public/other/none":  status.NotPermitted,
		top + "/public/astray/none": status.NotPermitted,
		top + "/public/evil":        status.NotPermitted,
		"../evil":                   os.ErrNotExist,
		"../public/evil":            status.NotPermitted,
	} {
		root, err := openRoot(path)
		if err == nil {
			root.close()
		}
		if !errors.Is(err, want) {
			t.Errorf("open %s: %v, want %v", path, err, want)
		}
	}
}

func TestUnsafeDirectoriesAreRejected(t *testing.T) {
	cases := map[string]func(t *testing.T, directory string){
		"group can write": func(t *testing.T, directory string) {
			makeMode(t, directory,
				0o770)
		},
		"others can write": func(t *testing.T, directory string) {
			makeMode(t, directory,
				0o707)
		},
		"sticky and writable": func(t *testing.T, directory string) {
			makeMode(t, directory,
				os.ModeSticky|0o777)
		},
		"symbolic link": func(t *testing.T, directory string) { link(t, directory) },
		"parent is writable": func(t *testing.T, directory string) {
			makeMode(t,
				filepath.Dir(directory), 0o777)
		},
		"representor is a link": func(t *testing.T, directory string) {
			makeMode(t, directory,
				0o700)
			link(t, directory+"/b1:00.0")
		},
		"representor is writable": func(t *testing.T, directory string) {
			makeMode(t, directory, 0o700)
			makeMode(t, directory+"/b1:00.0", 0o777)
		},
		"file": func(t *testing.T, directory string) {
			if err := os.WriteFile(directory, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	}
	if os.Geteuid() == 0 {
		cases["owned by another user"] = func(t *testing.T, directory string) {
			makeMode(t, directory, 0o700)
			if err := os.Chown(directory, 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, makeUnsafe := range cases {
		t.Run(name, func(t *testing.T) {
			directory := filepath.Join(t.TempDir(), "parent", "comch")
			makeMode(t, filepath.Dir(directory), 0o755)
			makeUnsafe(t, directory)
			provider := New(Options{Directory: directory})
			if err := checkServer(provider); !errors.Is(err, status.NotPermitted) {
				t.Errorf("check: %v", err)
			}
			if _, err := provider.Listen(context.Background(),
				comch.ServerConfig{Name: "storage"}); !errors.Is(err, status.NotPermitted) {
				t.Errorf("listen: %v", err)
			}
			if _, err := provider.Connect(context.Background(),
				comch.ClientConfig{Name: "storage"}); !errors.Is(err, status.NotPermitted) {
				t.Errorf("connect: %v", err)
			}
		})
	}
}

func checkServer(p comch.Provider) error {
	return p.(comch.ServerChecker).CheckServer(comch.ServerConfig{Name: "storage"})
}

func TestACheckOfAServerLeavesNoTrace(t *testing.T) {
	parent := t.TempDir()
	directory := filepath.Join(parent, "run", "comch")
	if err := checkServer(New(Options{Directory: directory})); err != nil {
		t.Errorf("directories that are to be created: %v", err)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) > 0 {
		t.Errorf("the check has created %v (%v)", entries, err)
	}
	listenIn(t, directory, comch.ServerConfig{Name: "storage"})
	if err := checkServer(New(Options{Directory: directory})); err != nil {
		t.Errorf("beside a server: %v", err)
	}
	provider := declare(t, "dpu 03:00.0 representors=b1:00.1")
	if err := checkServer(provider); !errors.Is(err, status.NotFound) {
		t.Errorf("without the representor: %v", err)
	}
}

// TestEveryAncestorIsChecked puts an unsafe directory, or a symbolic link to one, at each height
// above a directory that is safe itself.
func TestEveryAncestorIsChecked(t *testing.T) {
	writable := func(t *testing.T, path string) { makeMode(t, path, 0o777) }
	sticky := func(t *testing.T, path string) { makeMode(t, path, 0o1777|os.ModeSticky) }
	linkToWritable := func(t *testing.T, path string) {
		outer := filepath.Join(t.TempDir(), "outer")
		makeMode(t, outer, 0o777)
		makeMode(t, filepath.Join(outer, "inner"), 0o755)
		if err := os.Symlink(filepath.Join(outer, "inner"), path); err != nil {
			t.Fatal(err)
		}
	}
	linkUpwards := func(t *testing.T, path string) {
		makeMode(t, path+"-target", 0o755)
		if err := os.Symlink("../"+filepath.Base(filepath.Dir(path))+"/"+filepath.Base(path)+"-target",
			path); err != nil {
			t.Fatal(err)
		}
	}
	loop := func(t *testing.T, path string) {
		if err := os.Symlink(path, path); err != nil {
			t.Fatal(err)
		}
	}
	foreign := func(t *testing.T, path string) {
		makeMode(t, path, 0o755)
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Skipf("cannot give a directory away: %v", err)
		}
	}
	cases := map[string]struct {
		make func(*testing.T, string)
		safe bool
	}{
		"writable by everybody":   {writable, false},
		"sticky":                  {sticky, true},
		"link below writable":     {linkToWritable, false},
		"relative link":           {linkUpwards, true},
		"link to itself":          {loop, false},
		"directory of a stranger": {foreign, false},
	}
	for name, test := range cases {
		for height := 1; height <= 3; height++ {
			t.Run(fmt.Sprintf("%s %d above", name, height), func(t *testing.T) {
				ancestor := filepath.Join(t.TempDir(), "ancestor")
				test.make(t, ancestor)
				directory := ancestor + "/a/b/c"[:2*(height-1)] + "/comch"
				provider := New(Options{Directory: directory})
				if err := checkServer(provider); errors.Is(err, status.NotPermitted) == test.safe {
					t.Errorf("check: %v", err)
				}
				server, err := provider.Listen(t.Context(), comch.ServerConfig{Name: "storage"})
				if test.safe {
					if err != nil {
						t.Fatal(err)
					}
					connectTo(t, directory)
					if err := server.Close(); err != nil {
						t.Error(err)
					}
					return
				}
				if !errors.Is(err, status.NotPermitted) {
					t.Errorf("listen: %v", err)
				}
				if _, err := os.Lstat(ancestor + "/a"); !errors.Is(err, os.ErrNotExist) &&
					!errors.Is(err, unix.ELOOP) {
					t.Errorf("listen created a directory in an unsafe place: %v", err)
				}
				_, err = provider.Connect(t.Context(), comch.ClientConfig{Name: "storage"})
				if !errors.Is(err, status.NotPermitted) {
					t.Errorf("connect: %v", err)
				}
			})
		}
	}
}

func makeMode(t *testing.T, directory string, mode os.FileMode) {
	t.Helper()
	if err := os.Mkdir(directory, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	if err := os.Chmod(directory, mode); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, path string) {
	t.Helper()
	if err := os.Symlink(t.TempDir(), path); err != nil {
		t.Fatal(err)
	}
}

func TestListenReplacesOnlySockets(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "comch")
	server := listenIn(t, directory, comch.ServerConfig{Name: "storage"})
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(server.Address(), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := New(Options{Directory: directory}).Listen(context.Background(),
		comch.ServerConfig{Name: "storage"})
	if !errors.Is(err, status.AlreadyExist) {
		t.Errorf("listen: %v", err)
	}
	if content, err := os.ReadFile(server.Address()); string(content) != "precious" {
		t.Errorf("the file holds %q, error %v", content, err)
	}
}

func TestDefaultDirectoryFollowsTheUser(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/1000")
	want := "/run/user/1000/zc-relay/comch"
	if os.Geteuid() == 0 {
		want = "/run/zc-relay/comch"
	}
	if got := DefaultDirectory(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestServicesListsListeningServers(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "comch")
	p := New(Options{Directory: directory})
	lister := p.(comch.ServiceLister)
	if services, err := lister.Services(); err != nil || len(services) != 0 {
		t.Errorf("without a directory: %v, error %v", services, err)
	}
	server, err := p.Listen(t.Context(),
		comch.ServerConfig{Device: "03:00.0", Representor: "b1:00.0", Name: "disk"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "b1:00.0", "03:00.0", "file"), nil,
		0o600); err != nil {
		t.Fatal(err)
	}
	services, err := lister.Services()
	if diff := cmp.Diff([]comch.Service{{Device: "03:00.0", Representor: "b1:00.0", Name: "disk"}},
		services); err != nil || diff != "" {
		t.Errorf("error %v, services differ: %s", err, diff)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if services, err := lister.Services(); err != nil || len(services) != 0 {
		t.Errorf("after the server closed: %v, error %v", services, err)
	}
}

func TestAMissingServerIsReportedWithThoseThereAre(t *testing.T) {
	directory := t.TempDir()
	p := New(Options{Directory: directory})
	missing := func(device string) string {
		t.Helper()
		_, err := p.Connect(t.Context(), comch.ClientConfig{Device: device, Name: "disc"})
		if !errors.Is(err, status.NotFound) {
			t.Fatalf("connect to a missing server: %v", err)
		}
		return err.Error()
	}
	if text := missing("b1:00.0"); strings.Contains(text, "connect to one") {
		t.Errorf("without servers: %s", text)
	}
	const more = 2
	for i := range maxAlternatives + more {
		listenIn(t, directory, comch.ServerConfig{Device: "03:00.0", Representor: "b1:00.1",
			Name: fmt.Sprintf("disk%d", i)})
	}
	for _, device := range []string{"b1:00.0", "b1:00.1"} {
		text := missing(device)
		if !strings.Contains(text, `" of device b1:00.1, "disk`) ||
			!strings.Contains(text, fmt.Sprintf(" and %d more", more)) {
			t.Errorf("the servers are not listed: %s", text)
		}
	}
}

func TestTheSocketOfAKilledServerIsNoService(t *testing.T) {
	directory := t.TempDir()
	p := New(Options{Directory: directory})
	listenIn(t, directory, comch.ServerConfig{Device: "03:00.0", Representor: "b1:00.0",
		Name: "alive"})
	path := filepath.Join(directory, "b1:00.0", "03:00.0", "killed")
	left, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	services, err := p.(comch.ServiceLister).Services()
	if err != nil || len(services) != 1 || services[0].Name != "alive" {
		t.Errorf("services are %+v, error %v", services, err)
	}
	_, err = p.Connect(t.Context(), comch.ClientConfig{Device: "b1:00.0", Name: "killed"})
	if !errors.Is(err, status.NotFound) || !strings.Contains(err.Error(),
		"the relay that listened at "+
			path+" has ended: start it, or connect to one that there is: \"alive\" of device b1:00.0") {
		t.Errorf("connect: %v", err)
	}
}

func TestAMissingDirectoryIsToldFromAMissingServer(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "none")
	_, err := New(Options{Directory: directory}).Connect(t.Context(),
		comch.ClientConfig{Name: "storage"})
	if !errors.Is(err, status.NotFound) || !strings.Contains(err.Error(),
		directory+" does not exist") {
		t.Errorf("connect: %v", err)
	}
	_, err = declare(t, "host b1:00.0").Connect(t.Context(),
		comch.ClientConfig{Device: "b1:00.7", Name: "storage"})
	if _, isDevice := errors.AsType[*comch.NoDeviceError](err); !isDevice {
		t.Errorf("connect from a device that is not there: %v", err)
	}
}
