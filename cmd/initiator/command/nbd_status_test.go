package command

import "testing"

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
