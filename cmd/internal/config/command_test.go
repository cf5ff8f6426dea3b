// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// The packaged files say that dump prints them, and doctor reads them as well.
func TestTheFileOfTheUnitStandsInForACommandLine(t *testing.T) {
	const unit = "/the/unit.yaml"
	unitFile := write(t, "channels: [{target: 127.0.0.1:1, volume: ofTheUnit}]")
	other := write(t, "channels: [{target: 127.0.0.1:1, volume: another}]")
	for _, c := range []struct {
		file, line string
		want       string // in the output or the error
		fails      bool
	}{
		{unitFile, "dump", "ofTheUnit", false},
		{unitFile, "dump -o json", "ofTheUnit", false},
		{unitFile, "dump " + other, "another", false},
		{unitFile, "dump --config " + other, "another", false},
		{unitFile, "dump --storage-server 127.0.0.1:2 --volume ofFlags", "ofFlags", false},
		{unit, "dump", "channels: is empty", true},
		{unitFile, "check", unitFile + " is valid", false},
		{unitFile, "check " + other, other + " is valid", false},
		{unit, "check", "FILE is missing, and there is no " + unit, true},
	} {
		from := RelaySource()
		from.UnitFile = c.file
		cmd := NewCommand("run", from)
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(strings.Fields(c.line))
		err := cmd.ExecuteContext(t.Context())
		got := out.String()
		if err != nil {
			got = err.Error()
		}
		if (err != nil) != c.fails || !strings.Contains(got, c.want) {
			t.Errorf("%s: %v, %s", c.line, err, got)
		}
	}
}
