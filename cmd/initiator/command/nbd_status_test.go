// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"testing"
	"time"
)

// The schema describes every field, and documents without the optional ones.
func TestTheGatewaysStatusIsAsItsSchemaSays(t *testing.T) {
	full := nbdExportStatus{Name: "disk", State: "serving", Reason: "lost", Description: "d",
		HolderID: "0123456789abcdef",
		Requests: []requestCount{{Command: "read", Error: "EIO", Count: 1}},
		Clients:  []nbdClientStatus{{Client: "10.0.0.7:51234", Since: time.Now()}}}
	ended := nbdExportStatus{State: "ended", Requests: []requestCount{},
		Clients: []nbdClientStatus{}}
	text, err := json.Marshal(nbdStatus{Schema: nbdStatusSchema, Software: "initiator",
		Exports: []nbdExportStatus{full, ended}})
	if err != nil {
		t.Fatal(err)
	}
	checkDocument(t, "nbd-status", outcome{stdout: string(text)})
}

// A client has the same name whenever it connects.
func TestAnNBDClientIsNamedByWhatLasts(t *testing.T) {
	for described, want := range map[string]string{
		"process 17 of user 1000":                "user 1000",
		"process 17 of user 1000 (host-a (lab))": "host-a (lab)",
		"10.0.0.7:51234":                         "10.0.0.7",
		"10.0.0.7:51234 (host-a)":                "host-a",
		"[fd00::7]:51234":                        "fd00::7",
		"pipe":                                   "pipe",
	} {
		if got := nameNBDClient(described); got != want {
			t.Errorf("%q is named %q, want %q", described, got, want)
		}
	}
}
