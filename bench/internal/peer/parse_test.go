// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"os"
	"testing"
)

func TestTheResultOfIPerf3IsUnderstood(t *testing.T) {
	output, err := os.ReadFile("testdata/iperf3.json")
	if err != nil {
		t.Fatal(err)
	}
	run, err := parseIPerf3(output, 128<<10)
	if err != nil || run.BytesPerSecond < 1<<20 || int(run.IOPS) != int(run.BytesPerSecond>>17) {
		t.Errorf("run is %+v, error %v", run, err)
	}
	for _, text := range []string{"", "{}", `{"error": "unable to connect"}`} {
		if _, err := parseIPerf3([]byte(text), 4096); err == nil {
			t.Errorf("%q was understood", text)
		}
	}
}

func TestTheResultOfUCXIsUnderstood(t *testing.T) {
	run, err := parseUCX([]byte("+---+\n|  Test  |\n   50000      5.562     6.448     6.448      605.85     605.85      155097      155099\n"),
		4096)
	if err != nil || run.IOPS != 155099 || *run.LatencyNs.P50 != 5562 {
		t.Errorf("run is %+v, error %v", run, err)
	}
	for _, text := range []string{"", "1 2 3", "1 x 3 4 5 6 7 8", "1 2 3 4 5 6 7 x"} {
		if _, err := parseUCX([]byte(text), 4096); err == nil {
			t.Errorf("%q was understood", text)
		}
	}
}

func TestTheResultOfPingpongIsUnderstood(t *testing.T) {
	run, err := parsePingpong([]byte("bytes #sent\n4k      5k      =5k      39m         0.88s     46.37      50.00       0.01\n"),
		4096)
	if err != nil || run.IOPS != 10000 || *run.LatencyNs.Mean != 100000 {
		t.Errorf("run is %+v, error %v", run, err)
	}
	for _, text := range []string{"", "4k 5k =5k 39m 0.88s 46.37 0 0.01",
		"4k 5k =5k 39m 0.88s 46.37 x 0.01"} {
		if _, err := parsePingpong([]byte(text), 4096); err == nil {
			t.Errorf("%q was understood", text)
		}
	}
}

func TestAPeerThatIsNotInstalledSaysHowToGetIt(t *testing.T) {
	p := Peer{Programs: []string{"no-such-program"}, Packages: []string{"such", "packages"}}
	if got, want := p.Missing(),
		"no-such-program is not installed: apt-get install such packages"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
