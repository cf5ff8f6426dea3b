// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"bytes"
	"crypto/tls"
	"io"
	"testing"
)

// The trace of a simple handshake with one round trip (RFC 8448 section 3).
var (
	traceClientSecret = unhex("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5")
	traceServerSecret = unhex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643")

	traceTicket = unhex(`17030300de
		3a6b8f90414a97d6959c3487680de5134a2b240e6cffac116e95d41d6af8f6b5
		80dcf3d11d63c758db289a015940252f55713e061dc13e078891a38efbcf5753
		ad8ef170ad3c7353d16d9da773b9ca7f2b9fa1b6c0d4a3d03f75e09c30ba1e62
		972ac46f75f7b981be63439b2999ce13064615139891d5e4c5b406f16e3fc181
		a77ca475840025db2f0a77f81b5ab05b94c01346755f69232c86519d86cbeeac
		87aac347d143f9605d64f650db4d023e70e952ca49fe5137121c74bc2697687e
		248746d6df353005f3bce18696129c8153556b3b6c6779b37bf15985684f`)
	traceData = unhex(`000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
		202122232425262728292a2b2c2d2e2f3031`)
	traceClientData = unhex(`1703030043
		a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5
		b46b395bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb2169
		4915e4`)
	traceServerData = unhex(`1703030043
		2e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d
		90e6dffc602dcb501a59a8fcc49c4bf2e5f0a21c0047c2abf332540dd032e167
		c2955d`)
	traceClientClose = unhex("1703030013 c9872760655666b74d7ff1153efd6db6d0b0e3")
	traceServerClose = unhex("1703030013 b58fd67166ebf599d24720cfbe7efa7a8864a9")
)

func traceSessions(t *testing.T) (client, server *Session) {
	t.Helper()
	const suite = tls.TLS_AES_128_GCM_SHA256
	client, err := newSession(suite, true,
		bytes.Clone(traceServerSecret), bytes.Clone(traceClientSecret))
	if err != nil {
		t.Fatal(err)
	}
	server, err = newSession(suite, false,
		bytes.Clone(traceClientSecret), bytes.Clone(traceServerSecret))
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

func TestKeysOfTheTraceAreDerived(t *testing.T) {
	for _, c := range []struct {
		secret  []byte
		key, iv string
	}{
		{traceClientSecret, "17422dda596ed5d9acd890e3c63f5051", "5b78923dee08579033e523d9"},
		{traceServerSecret, "9f02283b6c9c07efc26bb9f2ac92e356", "cf782b88dd83549aadf1e984"},
	} {
		suite := suites[tls.TLS_AES_128_GCM_SHA256]
		key, err := suite.expand(c.secret, "key", suite.keyBytes)
		if err != nil || !bytes.Equal(key, unhex(c.key)) {
			t.Errorf("key %x, %v, want %s", key, err, c.key)
		}
		iv, err := suite.expand(c.secret, "iv", nonceBytes)
		if err != nil || !bytes.Equal(iv, unhex(c.iv)) {
			t.Errorf("iv %x, %v, want %s", iv, err, c.iv)
		}
	}
}

func TestRecordsOfTheTraceAreOpened(t *testing.T) {
	client, server := traceSessions(t)
	open := func(s *Session, record, want []byte, wantErr error) {
		t.Helper()
		if length, err := RecordLength(record); length != len(record) || err != nil {
			t.Errorf("length %d, %v, want %d", length, err, len(record))
		}
		if got, err := s.Open(bytes.Clone(record)); !bytes.Equal(got, want) || err != wantErr {
			t.Errorf("%x, %v, want %x, %v", got, err, want, wantErr)
		}
	}
	open(client, traceTicket, nil, nil)
	open(client, traceServerData, traceData, nil)
	open(client, traceServerClose, nil, io.EOF)
	open(server, traceClientData, traceData, nil)
	open(server, traceClientClose, nil, io.EOF)
}

func TestRecordsOfTheTraceAreSealed(t *testing.T) {
	client, server := traceSessions(t)
	server.out.sequence++ // its ticket
	for _, c := range []struct {
		s           *Session
		data, close []byte
	}{{client, traceClientData, traceClientClose}, {server, traceServerData, traceServerClose}} {
		if got := c.s.sealed(string(traceData)); !bytes.Equal(got, c.data) {
			t.Errorf("%x, want %x", got, c.data)
		}
		if got := c.s.AppendAlert(nil, CloseNotify); !bytes.Equal(got, c.close) {
			t.Errorf("%x, want %x", got, c.close)
		}
	}
}
