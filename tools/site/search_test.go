// SPDX-License-Identifier: Apache-2.0

//go:build complete

package main

import (
	"context"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// questions are those of newcomers, with the page that answers each.
var questions = map[string]string{
	"how do I limit a client":                   "guides/relay.html#rate-limits",
	"what does CONNECTION_RESET mean":           "reference/errors.html#connection_reset",
	"where is the key stored":                   "guides/security.html",
	"how do I move a volume":                    "recipes/move-a-volume.html",
	"which metric counts failed IO":             "reference/metrics.html",
	"how do I upgrade the relay":                "recipes/upgrade.html",
	"ZcRelayTargetDown":                         "reference/alerts.html#zcrelaytargetdown",
	"how much memory does a session need":       "guides/resources.html",
	"can two targets serve the same Ceph image": "recipes/ceph-stand-by.html",
	"mount a volume as a disk with nbd":         "recipes/nbd-disk.html",
	"what happens when the target dies":         "guides/faults.html",
	"exit code 3 of initiator":                  "reference/signals.html#exit-codes",
	"io_timeout default":                        "reference/configuration.html",
	"revoke a certificate":                      "guides/security.html",
	"client cannot connect":                     "recipes/when-something-fails.html",
	"add a channel while the relay is running":  "guides/relay.html#changing-channels-by-command",
}

// best is how many results a reader looks at.
const best = 4

var result = regexp.MustCompile(`<a href="([^"]+)" role="option"`)

func TestASearchAnswersTheQuestionsOfNewcomers(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(t.TempDir(), "site")
	if err := build("../..", output, ""); err != nil {
		t.Fatal(err)
	}
	for question, want := range questions {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		page, err := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu",
			"--user-data-dir="+t.TempDir(), "--virtual-time-budget=10000", "--dump-dom",
			"file://"+output+"/index.html?q="+url.QueryEscape(question)).Output()
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		answered := false
		for _, match := range result.FindAllStringSubmatch(string(page), best) {
			found = append(found, match[1])
			answered = answered || strings.HasPrefix(match[1], want)
		}
		if !answered {
			t.Errorf("%s: %s is not among the first: %v", question, want, found)
		}
	}
}
