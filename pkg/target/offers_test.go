// SPDX-License-Identifier: Apache-2.0

package target_test

import (
	"crypto/rand"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// opener opens volume "disk" through relays of its own, as one program.
type opener struct {
	t         *testing.T
	target    *target.Target
	owner     byte
	exclusive bool
	readOnly  bool
	preempt   controlmsg.HolderID
}

func (o opener) open() (*controlmsg.Requester, *controlmsg.ConfigureDataPathReply, error) {
	r, err := relayTo(o.t, o.target.Address(), nil)
	if err != nil {
		o.t.Fatal(err)
	}
	m := configuration(1, 4)
	_, _ = rand.Read(m.ClientInstance[:]) // never fails
	m.Owner[0], m.Exclusive, m.ReadOnly, m.Preempt = o.owner, o.exclusive, o.readOnly, o.preempt
	m.Client = "program " + string('a'+rune(o.owner))
	takePart(r, m)
	reply, err := controlmsg.Call(o.t.Context(), r, m)
	return r, reply, err
}

// compete opens the volume for six owners at a time. It returns the sessions of those that have not
// been told that the volume is in use.
func (o opener) compete() (winners []*controlmsg.Requester) {
	var group sync.WaitGroup
	var mu sync.Mutex
	for owner := range byte(6) {
		rival := o
		rival.owner = owner
		group.Go(func() {
			r, _, err := rival.open()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				winners = append(winners, r)
			case !errors.Is(err, status.InUse):
				o.t.Error(err)
			}
		})
	}
	group.Wait()
	return winners
}

func TestAVolumeIsOpenExclusively(t *testing.T) {
	s := startTarget(t, func(*target.Config) {})
	for _, test := range []struct {
		name          string
		first, second opener
		refused       string // what the error contains
	}{
		{"shared", opener{owner: 0}, opener{owner: 1}, ""},
		{"exclusive, then shared", opener{owner: 0, exclusive: true}, opener{owner: 1},
			`volume "disk" is open exclusively by program a through relay 127.0.0.1`},
		{"exclusive, then for reading", opener{owner: 0, exclusive: true},
			opener{owner: 1, readOnly: true}, "program a"},
		{"shared, then exclusive", opener{owner: 0}, opener{owner: 1, exclusive: true},
			`volume "disk" cannot be opened exclusively: it is open by program a`},
		{"twice exclusive", opener{owner: 0, exclusive: true}, opener{owner: 1, exclusive: true},
			"program a"},
		{"twice exclusive for one owner", opener{owner: 0, exclusive: true},
			opener{owner: 0, exclusive: true}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.first.t, test.first.target = t, s
			test.second.t, test.second.target = t, s
			first, reply, err := test.first.open()
			if err != nil || reply.Exclusive != test.first.exclusive {
				t.Fatalf("first: %+v, %v", reply, err)
			}
			second, _, err := test.second.open()
			switch {
			case test.refused == "" && err != nil:
				t.Errorf("second: %v", err)
			case test.refused != "" && (!errors.Is(err, status.InUse) ||
				!strings.Contains(err.Error(), test.refused)):
				t.Errorf("second: %v", err)
			}
			destroy(t, first)
			if test.refused != "" {
				if second, _, err = test.second.open(); err != nil {
					t.Fatalf("second, after the end of the first: %v", err)
				}
			}
			destroy(t, second)
			expectSessions(t, s, 0, "")
		})
	}
}

func destroy(t *testing.T, r *controlmsg.Requester) {
	t.Helper()
	if _, err := r.Call(t.Context(), &controlmsg.DestroyObjects{}); err != nil {
		t.Error(err)
	}
}

// expectSessions opens a session that only asks.
func expectSessions(t *testing.T, s *target.Target, sessions uint32, holder string) {
	t.Helper()
	r, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := controlmsg.Call(t.Context(), r, &controlmsg.OpenVolume{Volume: "disk"})
	if err != nil || reply.Sessions != sessions || !strings.HasPrefix(reply.Holder, holder) ||
		(holder == "") != (reply.Holder == "") {
		t.Errorf("the target says %+v, %v; want %d sessions, holder %q", reply, err, sessions, holder)
	}
}

func TestTheTargetTellsWhoHasAVolume(t *testing.T) {
	s := startTarget(t, func(*target.Config) {})
	expectSessions(t, s, 0, "")
	reader, reply, err := opener{t: t, target: s, owner: 1, readOnly: true}.open()
	if err != nil || !reply.ReadOnly {
		t.Fatalf("%+v, %v", reply, err)
	}
	expectSessions(t, s, 1, "")
	destroy(t, reader)
	for range 2 {
		if _, _, err := (opener{t: t, target: s, owner: 2, exclusive: true}).open(); err != nil {
			t.Fatal(err)
		}
	}
	expectSessions(t, s, 2, "program c through relay 127.0.0.1")
}

// TestALostSessionKeepsNobodyOut ends a session as the crash of a relay does.
func TestALostSessionKeepsNobodyOut(t *testing.T) {
	s := startTarget(t, func(*target.Config) {})
	lost, _, err := opener{t: t, target: s, owner: 0, exclusive: true}.open()
	if err != nil {
		t.Fatal(err)
	}
	lost.Close(errors.New("the relay has crashed"))
	testkit.Eventually(t, "the volume is free", func() bool {
		r, _, err := opener{t: t, target: s, owner: 1, exclusive: true}.open()
		if err == nil {
			destroy(t, r)
		}
		return err == nil
	})
}

func TestOneOfManyOpensAVolumeExclusively(t *testing.T) {
	s := startTarget(t, func(*target.Config) {})
	for range 20 {
		winners := opener{t: t, target: s, exclusive: true}.compete()
		if len(winners) != 1 {
			t.Fatalf("%d owners have the volume exclusively", len(winners))
		}
		destroy(t, winners[0])
	}
}

// TestWithdrawWaitsForTheSessionsOfAVolume ends sessions that only watch, and those with lanes.
func TestWithdrawWaitsForTheSessionsOfAVolume(t *testing.T) {
	var offered target.Offer
	s := startTarget(t, func(c *target.Config) { offered = c.Volumes["disk"] })
	watching, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	using, _, err := opener{t: t, target: s, exclusive: true}.open()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Withdraw(t.Context(), "disk", retry.Bound{}); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*controlmsg.Requester{watching, using} {
		<-r.Done()
		if err := r.Err(); !errors.Is(err, status.Shutdown) {
			t.Errorf("a session of the volume ended with %v", err)
		}
	}
	if _, err := relayTo(t, s.Address(), nil); !errors.Is(err, status.NotFound) {
		t.Errorf("open the volume that was withdrawn: %v", err)
	}
	if err := s.Withdraw(t.Context(), "disk", retry.Bound{}); !errors.Is(err, status.NotFound) {
		t.Errorf("withdraw it again: %v", err)
	}
	if err := s.Offer("disk", offered); err != nil {
		t.Fatal(err)
	}
	if err := s.Offer("disk", offered); !errors.Is(err, status.AlreadyExist) {
		t.Errorf("offer it twice: %v", err)
	}
	if _, _, err := (opener{t: t, target: s, exclusive: true}).open(); err != nil {
		t.Errorf("open the volume that is offered again: %v", err)
	}
}

// TestOffersComeAndGoUnderLoad opens a volume while it comes and goes. Every session either works
// or ends, and each Withdraw returns.
func TestOffersComeAndGoUnderLoad(t *testing.T) {
	var offered target.Offer
	s := startTarget(t, func(c *target.Config) { offered = c.Volumes["disk"] })
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for owner := range byte(4) {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r, err := relayWithoutVolume(t, s.Address(), nil)
				if err == nil {
					err = openVolume(t, r, "disk")
				}
				if err == nil {
					m := configuration(1, 4)
					_, _ = rand.Read(m.ClientInstance[:]) // never fails
					m.Owner[0] = owner
					takePart(r, m)
					_, err = r.Call(t.Context(), m)
				}
				if err != nil && !errors.Is(err, status.NotFound) &&
					!errors.Is(err, status.Shutdown) {
					t.Errorf("a client ended with %v", err)
				}
				r.Close(nil)
			}
		})
	}
	for range 100 {
		if err := s.Withdraw(t.Context(), "disk", retry.Bound{}); err != nil {
			t.Error(err)
		}
		if err := s.Offer("disk", offered); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	clients.Wait()
}

func credentials(t *testing.T, authority *mutualtlstest.Authority,
	name string) *mutualtls.Credentials {
	t.Helper()
	c, err := mutualtls.Load(authority.Write(t.TempDir(), []string{name}), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNamesOfAVolumeShareWhoHasItAndNotWhatTheyAllow(t *testing.T) {
	s := startTarget(t, func(c *target.Config) {
		other := c.Volumes["disk"]
		other.ReadOnly = true
		c.Volumes["other"] = other
	})
	owner, _, err := opener{t: t, target: s, owner: 0, exclusive: true}.open()
	if err != nil {
		t.Fatal(err)
	}
	reader, err := relayTo(t, s.Address(), nil)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := controlmsg.Call(t.Context(), reader, &controlmsg.OpenVolume{Volume: "other"})
	if err != nil || !reply.ReadOnly || reply.Sessions != 1 {
		t.Errorf("the other name: %+v, %v", reply, err)
	}
	m := configuration(1, 4)
	_, _ = rand.Read(m.ClientInstance[:]) // never fails
	m.Owner[0] = 1
	if _, err := reader.Call(t.Context(), m); !errors.Is(err, status.InUse) {
		t.Errorf("the other name of a volume that is open exclusively: %v", err)
	}
	if uses := s.Uses(); uses["disk"].Sessions != 1 || uses["other"] != uses["disk"] {
		t.Errorf("uses: %+v", uses)
	}
	destroy(t, owner)
	granted, err := controlmsg.Call(t.Context(), reader, m)
	if err != nil || !granted.ReadOnly {
		t.Errorf("the read-only name, after the owner has left: %+v, %v", granted, err)
	}
	writer, granted, err := opener{t: t, target: s, owner: 2}.open()
	if err != nil || granted.ReadOnly {
		t.Errorf("the other name beside a reader: %+v, %v", granted, err)
	}
	destroy(t, writer)
	destroy(t, reader)
}

func TestRightsFollowTheCertificate(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	s := startTarget(t, func(c *target.Config) {
		c.TLS = credentials(t, authority, "target")
		disk := c.Volumes["disk"]
		disk.Rights = []target.Right{
			{Relay: mutualtlstest.Name("reader"), Access: target.ReadAccess},
			{Relay: mutualtlstest.Name("WRITER"), Access: target.WriteAccess},
			{Relay: mutualtlstest.Name("owner"), Access: target.ExclusiveAccess},
			{Relay: mutualtlstest.Name("owner"), Access: target.ReadAccess},
			{Relay: mutualtlstest.Name("mover"), Access: target.PreemptAccess},
		}
		c.Volumes["disk"] = disk
		disk.Rights, disk.ReadOnly = nil, true
		c.Volumes["public"] = disk
	})
	for relay, want := range map[string]struct {
		open, write, exclusive, preempt bool
	}{
		"stranger": {}, "reader": {open: true}, "writer": {open: true, write: true},
		"owner": {open: true, write: true, exclusive: true},
		"mover": {open: true, write: true, exclusive: true, preempt: true},
	} {
		secure := credentials(t, authority, relay).Client("target")
		r, err := relayTo(t, s.Address(), secure)
		if (err == nil) != want.open || err != nil && !errors.Is(err, status.NotPermitted) {
			t.Errorf("%s opens the volume: %v", relay, err)
		}
		if err := openVolume(t, r, "public"); err != nil {
			t.Errorf("%s opens the volume for everybody: %v", relay, err)
		}
		if !want.open {
			continue
		}
		reply, err := controlmsg.Call(t.Context(), r, &controlmsg.OpenVolume{Volume: "disk"})
		if err != nil || reply.ReadOnly == want.write {
			t.Errorf("%s: %+v, %v", relay, reply, err)
		}
		m := configuration(1, 4)
		_, _ = rand.Read(m.ClientInstance[:]) // never fails
		m.Preempt = controlmsg.NewHolderID()  // which nobody has
		if _, err := r.Call(t.Context(), m); (err == nil) != want.preempt ||
			err != nil && !errors.Is(err, status.NotPermitted) {
			t.Errorf("%s preempts: %v", relay, err)
		}
		if want.preempt {
			destroy(t, r)
			continue
		}
		m.Preempt, m.Exclusive = 0, true
		if _, err := r.Call(t.Context(), m); (err == nil) != want.exclusive ||
			err != nil && !errors.Is(err, status.NotPermitted) {
			t.Errorf("%s opens the volume exclusively: %v", relay, err)
		}
		if m.Exclusive = false; !want.exclusive {
			granted, err := controlmsg.Call(t.Context(), r, m)
			if err != nil || granted.ReadOnly == want.write {
				t.Errorf("%s: %+v, %v", relay, granted, err)
			}
		}
		destroy(t, r)
	}
}

func TestAnExclusiveVolumeHasOneWriterAndReadersBesideIt(t *testing.T) {
	s := startTarget(t, func(c *target.Config) {
		disk := c.Volumes["disk"]
		disk.Exclusive = true
		c.Volumes["disk"] = disk
	})
	writer := opener{t: t, target: s, owner: 0}
	for _, test := range []struct {
		name          string
		first, second opener
		exclusive     bool   // what the first is told
		refused       string // what the error of the second contains
	}{
		{"two writers", writer, opener{owner: 1}, true, "is open exclusively by program a"},
		{"two writers of one owner", writer, opener{owner: 0}, true, ""},
		{"a writer, then a reader", writer, opener{owner: 1, readOnly: true}, true, ""},
		{"a reader, then a writer", opener{owner: 0, readOnly: true}, opener{owner: 1}, false, ""},
		{"two readers", opener{owner: 0, readOnly: true}, opener{owner: 1, readOnly: true}, false,
			""},
		{"a reader that wants no other, then a reader",
			opener{owner: 0, readOnly: true, exclusive: true}, opener{owner: 1, readOnly: true},
			true, "is open exclusively by program a"},
		{"a reader, then a writer that wants no other", opener{owner: 0, readOnly: true},
			opener{owner: 1, exclusive: true}, false, "it is open by program a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.first.t, test.first.target = t, s
			test.second.t, test.second.target = t, s
			first, reply, err := test.first.open()
			if err != nil || reply.Exclusive != test.exclusive {
				t.Fatalf("first: %+v, %v", reply, err)
			}
			second, _, err := test.second.open()
			if (err == nil) != (test.refused == "") || err != nil &&
				(!errors.Is(err, status.InUse) || !strings.Contains(err.Error(), test.refused)) {
				t.Errorf("second: %v", err)
			}
			destroy(t, first)
			destroy(t, second)
		})
	}
}

func TestARelayLearnsOnlyOfVolumesThatItMayUse(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	s := startTarget(t, func(c *target.Config) {
		c.TLS = credentials(t, authority, "target")
		for name, relay := range map[string]string{"disk": "a", "secret": "b"} {
			c.Volumes[name] = target.Offer{Volume: volumetest.OpenMemory(t, "1MiB"),
				Rights: []target.Right{
					{Relay: mutualtlstest.Name(relay), Access: target.WriteAccess}}}
		}
	})
	for relay, want := range map[string]string{"a": `["disk"]`, "b": `["secret"]`, "c": `[]`} {
		r, err := relayWithoutVolume(t, s.Address(),
			credentials(t, authority, relay).Client("target"))
		if err != nil {
			t.Fatalf("%s: %v", relay, err)
		}
		if err := openVolume(t, r, "none"); !errors.Is(err, status.NotFound) ||
			!strings.Contains(err.Error(), "it has "+want+" ") {
			t.Errorf("relay %s: %v", relay, err)
		}
	}
}

func TestChangedRightsEndOnlySessionsThatUseWhatIsLost(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	rights := func(relays ...target.Right) []target.Right { return relays }
	s := startTarget(t, func(c *target.Config) {
		c.TLS = credentials(t, authority, "target")
		disk := c.Volumes["disk"]
		disk.Rights = rights(target.Right{Relay: mutualtlstest.Name("a"), Access: target.WriteAccess},
			target.Right{Relay: mutualtlstest.Name("b"), Access: target.WriteAccess})
		c.Volumes["disk"] = disk
	})
	open := func(relay string) *controlmsg.Requester {
		r, err := relayTo(t, s.Address(), credentials(t, authority, relay).Client("target"))
		if err != nil {
			t.Fatalf("%s: %v", relay, err)
		}
		return r
	}
	configure := func(r *controlmsg.Requester, readOnly bool) *controlmsg.ConfigureDataPathReply {
		m := configuration(1, 4)
		_, _ = rand.Read(m.ClientInstance[:]) // never fails
		m.ReadOnly = readOnly
		reply, err := controlmsg.Call(t.Context(), r, m)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	change := func(to ...target.Right) {
		if err := s.SetRights("disk", to); err != nil {
			t.Fatal(err)
		}
	}
	expectLost := func(what string, r *controlmsg.Requester) {
		select {
		case <-r.Done():
		case <-time.After(testkit.Patience):
			t.Fatalf("%s goes on", what)
		}
		if err := r.Err(); !errors.Is(err, status.NotPermitted) {
			t.Errorf("%s ended with %v", what, err)
		}
	}
	kept, watching, writer, reader := open("a"), open("b"), open("b"), open("b")
	configure(kept, false)
	configure(writer, false)
	configure(reader, true)
	change(target.Right{Relay: mutualtlstest.Name("a"), Access: target.ExclusiveAccess},
		target.Right{Relay: mutualtlstest.Name("b"), Access: target.ReadAccess})
	expectLost("a session that writes and may only read", writer)
	if reply := configure(watching, false); !reply.ReadOnly {
		t.Errorf("a session that has begun when its relay might write: %+v", reply)
	}
	change(target.Right{Relay: mutualtlstest.Name("a"), Access: target.WriteAccess})
	expectLost("a session that reads and may not", reader)
	expectLost("another one", watching)
	destroy(t, kept) // it has not ended
	if err := s.SetRights("none", nil); !errors.Is(err, status.NotFound) {
		t.Errorf("rights to a volume that there is not: %v", err)
	}
}

func TestARelayThatIsNoLongerAcceptedLosesItsSessions(t *testing.T) {
	authority, dir := mutualtlstest.NewAuthority(t), t.TempDir()
	revokedFiles := authority.Write(filepath.Join(dir, "b"), []string{"b"})
	files := authority.Write(filepath.Join(dir, "target"), []string{"target"})
	files.Revoked = filepath.Join(dir, "crl.pem")
	authority.Revoke(files.Certificate, files.Revoked, time.Now().Add(time.Hour)) // none of a relay
	load := func(files mutualtls.Files) *mutualtls.Credentials {
		c, err := mutualtls.Load(files, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	s := startTarget(t, func(c *target.Config) { c.TLS = load(files) })
	open := func(c *mutualtls.Credentials) (*controlmsg.Requester, error) {
		return relayTo(t, s.Address(), c.Client("target"))
	}
	expectLost := func(what string, r *controlmsg.Requester) {
		t.Helper()
		select {
		case <-r.Done():
		case <-time.After(testkit.Patience):
			t.Fatalf("%s goes on", what)
		}
		if err := r.Err(); !errors.Is(err, status.Authentication) {
			t.Errorf("%s ended with %v", what, err)
		}
	}
	must := func(r *controlmsg.Requester, err error) *controlmsg.Requester {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b := must(open(credentials(t, authority, "a"))), must(open(load(revokedFiles)))
	c := must(open(credentials(t, authority, "c")))
	s.SetAllowedNames(mutualtlstest.Names("a", "b"))
	expectLost("a relay whose name is no longer allowed", c)
	if _, err := open(credentials(t, authority, "c")); err == nil {
		t.Error("it comes back")
	}
	authority.Revoke(revokedFiles.Certificate, files.Revoked, time.Now().Add(time.Hour))
	s.SetAllowedNames(mutualtlstest.Names("a", "b"))
	expectLost("a relay whose certificate was revoked", b)
	if err := openVolume(t, a, "disk"); err != nil {
		t.Errorf("a relay that is still accepted: %v", err)
	}
}
