// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAConfigurationIsPairs(t *testing.T) {
	for text, want := range map[string][]string{
		"":                            nil,
		" \n,, \n":                    nil,
		"a=1,b=2":                     {"a=1", "b=2"},
		" a=1 ,\n\tb=2\n":             {"a=1", "b=2"},
		`owner=one\, two,b=c:\\d\e`:   {"owner=one, two", `b=c:\de`},
		"owner=a b = c":               {"owner=a b = c"},
		`ends with a backslash=here\`: {"ends with a backslash=here"},
	} {
		if got := split(text); !slices.Equal(got, want) {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestAnEmptyConfigurationHasTheDefaults(t *testing.T) {
	c, err := parse("")
	if err != nil {
		t.Fatal(err)
	}
	if c.spinTime != progress.DefaultSpinTime {
		t.Errorf("spin time %v", c.spinTime)
	}
	got := c.client
	if got.Provider == nil || got.Provider.Name() != "emulated" ||
		got.Device != emulated.DefaultHostDevice || got.Queues != 1 || got.SyncDepth >= 0 ||
		got.Reconnect != nil || got.ReadOnly || got.Exclusive || got.Owner != nil ||
		got.Logger.Level() != zapcore.InvalidLevel {
		t.Errorf("the default is %+v", got)
	}
}

func TestEachKeySetsItsField(t *testing.T) {
	c, err := parse("provider=emulated,directory=/d,device=01:00.0,channel=c,queues=3,depth=5," +
		"buffer_size=64KiB,memory_size=1MiB,max_quarantined=2MiB,control_timeout=1s," +
		"io_timeout=2s,release_timeout=3s,spin_time=0s,read_only=true,exclusive=true," +
		"preempt=p,owner=o,software=s,reconnect=true,reconnect_timeout=4s,log=warn")
	if err != nil {
		t.Fatal(err)
	}
	got := c.client
	if got.Owner == nil || got.Logger.Level() != zapcore.WarnLevel || c.spinTime != 0 ||
		c.directory != "/d" {
		t.Errorf("%+v", c)
	}
	want := client.Config{Device: "01:00.0", ChannelName: "c", Queues: 3, Depth: 5,
		BufferSize: 64 << 10, MemorySize: 1 << 20, MaxQuarantined: 2 << 20,
		ControlTimeout: time.Second, IOTimeout: 2 * time.Second, ReleaseTimeout: 3 * time.Second,
		ReadOnly: true, Exclusive: true, Preempt: "p", Software: "s", SyncDepth: -1}
	want.Provider, want.Owner, want.Logger = got.Provider, got.Owner, got.Logger
	want.Reconnect = got.Reconnect
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the keys set %+v, want %+v", got, want)
	}
	if got.Reconnect == nil || got.Reconnect.Total != retry.Within(4*time.Second) {
		t.Errorf("reconnecting: %+v", got.Reconnect)
	}
}

func TestAWrongConfigurationSaysWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"device":                       `"device" is no pair key=value`,
		"colour=red":                   `there is no key "colour": the keys are buffer_size, channel,`,
		"depth=1,depth=2":              `the key "depth" is given twice`,
		"depth=0":                      `depth: "0" is no number above 0`,
		"depth=99999999999":            `depth: "99999999999" is no number above 0`,
		"buffer_size=4GiB":             "buffer_size: 4GiB is 4 GiB or more",
		"memory_size=big":              "memory_size: ",
		"io_timeout=-1s":               `io_timeout: "-1s" is no duration such as 500ms or 10s`,
		"read_only=1":                  `read_only: "1" is neither true nor false`,
		"reconnect_timeout=1s":         "reconnect_timeout needs reconnect=true",
		"log=shout":                    `log: "shout" is none of none, error, warn, info, and debug`,
		"log=fatal":                    `log: "fatal" is none of`,
		"provider=pigeon":              `provider: "pigeon" is neither emulated nor doca`,
		"directory=/d,provider=pigeon": "pigeon",
	} {
		_, err := parse(text)
		if !errors.Is(err, status.InvalidValue) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := parse("queues=65"); !errors.Is(err, status.TooBig) {
		t.Errorf("65 queues: %v", err)
	}
}
