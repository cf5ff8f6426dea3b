// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

func TestASignalCancelsTheContextAndIsItsCause(t *testing.T) {
	ctx, stop := withSignals(context.Background())
	defer stop()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	var interrupted *Interrupted
	if cause := context.Cause(ctx); !errors.As(cause, &interrupted) ||
		interrupted.Signal != syscall.SIGTERM || !errors.Is(cause, context.Canceled) {
		t.Errorf("cause is %v", context.Cause(ctx))
	}
}

func TestAnEndIsForcedBySIGINTTwiceOrSIGTERMLater(t *testing.T) {
	type step struct {
		signal syscall.Signal
		after  time.Duration // since the step before
	}
	const soon = forceAfter - 1
	for _, test := range []struct {
		name   string
		steps  []step
		forced bool
	}{
		{"one SIGTERM", []step{{syscall.SIGTERM, 0}}, false},
		{"SIGTERM to the process and its group", []step{{syscall.SIGTERM, 0}, {syscall.SIGTERM, 0}},
			false},
		{"SIGTERM within a second", []step{{syscall.SIGTERM, 0}, {syscall.SIGTERM, soon}}, false},
		{"SIGTERM a second later", []step{{syscall.SIGTERM, 0}, {syscall.SIGTERM, forceAfter}}, true},
		{"SIGTERM three times", []step{{syscall.SIGTERM, 0}, {syscall.SIGTERM, soon},
			{syscall.SIGTERM, 1}}, true},
		{"SIGINT twice", []step{{syscall.SIGINT, 0}, {syscall.SIGINT, 0}}, true},
		{"SIGINT once after SIGTERM", []step{{syscall.SIGTERM, 0}, {syscall.SIGINT, forceAfter}}, false},
		{"SIGINT twice after SIGTERM", []step{{syscall.SIGTERM, 0}, {syscall.SIGINT, 0},
			{syscall.SIGINT, 0}}, true},
		{"SIGTERM after SIGINT", []step{{syscall.SIGINT, 0}, {syscall.SIGTERM, soon}}, false},
		{"SIGTERM long after SIGINT", []step{{syscall.SIGINT, 0}, {syscall.SIGTERM, forceAfter}}, true},
		{"SIGHUP twice", []step{{syscall.SIGHUP, 0}, {syscall.SIGHUP, forceAfter}}, false},
		{"SIGTERM after SIGHUP", []step{{syscall.SIGHUP, 0}, {syscall.SIGTERM, forceAfter}}, true},
	} {
		end, now := ending{forceAfter: forceAfter}, time.Unix(1, 0)
		for i, step := range test.steps {
			now = now.Add(step.after)
			want := test.forced && i == len(test.steps)-1
			if got := end.forces(step.signal, now); got != want {
				t.Errorf("%s: signal %d forces the end: %v", test.name, i+1, got)
			}
		}
	}
}

// TestRepeatedSignalsRequestOneEnd would be killed by the second signal.
func TestRepeatedSignalsRequestOneEnd(t *testing.T) {
	ctx, stop := withSignalsAfter(context.Background(), time.Hour)
	defer stop()
	delivered := make(chan os.Signal, 1)
	signal.Notify(delivered, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(delivered)
	for range 10 {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
			if err := syscall.Kill(os.Getpid(), s); err != nil {
				t.Fatal(err)
			}
			<-delivered
		}
	}
	<-ctx.Done()
	var interrupted *Interrupted
	if cause := context.Cause(ctx); !errors.As(cause, &interrupted) ||
		interrupted.Signal != syscall.SIGTERM {
		t.Errorf("the end has the cause %v", cause)
	}
}

// helperVariable makes the test program a process that signals end. Its value is the time after
// which SIGTERM forces the end.
const helperVariable = "ZC_RELAY_TEST_FORCE_AFTER"

// endBySignals says when it is ready and when it has been told to end, and never ends by itself.
func endBySignals() {
	after, err := time.ParseDuration(os.Getenv(helperVariable))
	if err != nil {
		panic(err)
	}
	ctx, _ := withSignalsAfter(context.Background(), after)
	fmt.Println("ready")
	<-ctx.Done()
	fmt.Println("ending")
	select {}
}

func TestAForcedEndKillsTheProcess(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		helper := exec.Command(os.Args[0])
		helper.Env = append(os.Environ(), helperVariable+"=0s")
		output, err := helper.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := helper.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(output)
		for lines.Scan() { // "ready", then "ending"
			if err := helper.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
		_ = helper.Wait()
		if state := helper.ProcessState.Sys().(syscall.WaitStatus); state.Signal() != s {
			t.Errorf("after %v twice the process ended with %v", s, helper.ProcessState)
		}
	}
}
