// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestASendThatFailsLateEndsItsProducerOnly(t *testing.T) {
	injector, _ := faulttest.New(t, "comch:producer.complete:nth=2:error=IO_FAILED")
	l := connect(t, injector)
	producer := l.producer.(comch.LateProducer)
	if !producer.Arm() {
		t.Fatal("a producer that has sent nothing cannot sleep")
	}
	producer.Disarm()
	for _, message := range []string{"arrives", "fails", "is lost"} {
		if err := producer.Send([]byte(message), nil); err != nil {
			t.Fatal(err)
		}
	}
	producer.Flush()
	if producer.Arm() {
		t.Error("a producer whose sends have completed sleeps")
	}
	if producer.State() != progress.Running || producer.Err() != nil {
		t.Errorf("before Poll the producer is %v, with error %v", producer.State(), producer.Err())
	}
	if n := producer.Poll(); n != 1 {
		t.Errorf("%d sends have succeeded, want 1", n)
	}
	if err := producer.Err(); producer.State() == progress.Running ||
		!errors.Is(err, status.IOFailed) || !errors.Is(err, fault.ErrInjected) {
		t.Errorf("the producer is %v, with error %v", producer.State(), err)
	}
	if err := producer.Send(nil, nil); !errors.Is(err, status.NotConnected) {
		t.Errorf("Send returned %v", err)
	}
	if !producer.Arm() {
		t.Error("a producer without anything to collect does not sleep")
	}
	producer.Disarm()
	if got := string(l.receive(t)); got != "arrives" {
		t.Errorf("received %q", got)
	}
	var received [1]comch.Received
	if n := l.consumer.Poll(received[:]); n != 0 {
		t.Errorf("%d lost messages have arrived", n)
	}
	if l.client.Err() != nil || l.consumer.State() != progress.Running {
		t.Errorf("the connection ended with %v, the consumer is %v", l.client.Err(),
			l.consumer.State())
	}
}

func TestAReceiveThatFailsLateEndsItsConsumerOnly(t *testing.T) {
	injector, _ := faulttest.New(t, "comch:consumer.post:while=trouble:error=NO_MEMORY")
	l := connect(t, injector)
	consumer := l.consumer.(comch.LateConsumer)
	if err := l.producer.Send([]byte("arrives"), nil); err != nil {
		t.Fatal(err)
	}
	l.producer.Flush()
	if got := string(l.receive(t)); got != "arrives" {
		t.Errorf("received %q", got)
	}
	injector.TurnOn("trouble")
	if err := consumer.PostReceive(0, linkBuffer, 0); err != nil {
		t.Fatal(err)
	}
	if consumer.State() != progress.Running || consumer.Err() != nil || consumer.Arm() {
		t.Errorf("before Poll the consumer is %v, with error %v", consumer.State(), consumer.Err())
	}
	var received [1]comch.Received
	if n := consumer.Poll(received[:]); n != 0 {
		t.Errorf("%d messages have arrived", n)
	}
	if err := consumer.Err(); consumer.State() == progress.Running ||
		!errors.Is(err, status.NoMemory) {
		t.Errorf("the consumer is %v, with error %v", consumer.State(), err)
	}
	if err := consumer.PostReceive(0, linkBuffer, 0); !errors.Is(err, status.BadState) {
		t.Errorf("PostReceive returned %v", err)
	}
	if l.server.Err() != nil || l.producer.State() != progress.Running {
		t.Errorf("the connection ended with %v, the producer is %v", l.server.Err(),
			l.producer.State())
	}
}
