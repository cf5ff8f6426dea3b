package iwarp

import (
	"io"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// TestAResponderSaysNothingBeforeTheFirstFrame plays initiators that announce
// no ready-to-receive frame, as Linux siw does, of both MPA revisions.
func TestAResponderSaysNothingBeforeTheFirstFrame(t *testing.T) {
	for name, c := range map[string]struct {
		request    mpaFrame
		replyBytes int
	}{
		"revision 2": {mpaFrame{revision: 2, enhanced: true, inboundReads: 2, outboundReads: 2}, mpaHeaderBytes + enhancedBytes},
		"revision 1": {mpaFrame{revision: 1}, mpaHeaderBytes},
	} {
		t.Run(name, func(t *testing.T) {
			p := newParty(t, Options{})
			client := p.dial()
			if _, err := client.Write(c.request.append(nil, mpaRequestKey)); err != nil {
				t.Fatal(err)
			}
			request, err := p.listener.Accept(contextFor(t))
			if err != nil {
				t.Fatal(err)
			}
			handle, err := request.Accept(contextFor(t), p.config)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(client, make([]byte, c.replyBytes)); err != nil {
				t.Fatal(err)
			}
			checkSilence(t, p, handle.(*connection), client)
			p.closeAll([]*connection{handle.(*connection)})
		})
	}
}

func checkSilence(t *testing.T, p *party, conn *connection, client io.ReadWriter) {
	t.Helper()
	if err := conn.PostSend([]rdma.SendRequest{{Opcode: rdma.OpSend}}); err != nil {
		t.Fatal(err)
	}
	conn.Flush()
	p.config.Queue.Poll(nil)
	if conn.sends.next != 0 {
		t.Fatal("the message was sent before the initiator's first frame")
	}
	if _, err := client.Write(appendZeroWrite(nil, false)); err != nil {
		t.Fatal(err)
	}
	for conn.sends.sent == 0 {
		p.config.Queue.Poll(nil)
	}
	frame := make([]byte, untaggedBytes+crcBytes)
	if _, err := io.ReadFull(client, frame); err != nil {
		t.Fatal(err)
	}
	p.config.Queue.Poll(make([]rdma.Completion, 1))
	if got, v := parsePrefix(frame); v != nil || got.op != opSend {
		t.Errorf("the responder sends %x", frame)
	}
}
