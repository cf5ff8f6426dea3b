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
		3680c2b2109d25caa26c3b06eea9fdc5cb31613ba702176596da2e886bf6af93
		507bd68161ad9cb4780653842e1041ecbf0088a65ac4ef438419dd1d95ddd9bd
		2ad4484e7e167d0e6c008448ae58a0418713b6fc6c51e4bb23a537fb75a74f73
		de31fe6aa0bc522515f8b25f8955428b5de5ac06762cec22b0aa78c94385ef8e
		70fa24945b7c1f268510871689bbbbfaf2e7f4a19277024f95f1143ab12a31ec
		63adb128cb390711fd6d06a498df3e98615d8eb102e23353b480efcca5e8e026
		7a6d0fe2441f14c8c9664aefb2cfff6ae9e0442728b6a0940c1e824fda06`)
	traceData = unhex(`000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
		202122232425262728292a2b2c2d2e2f3031`)
	traceClientData = unhex(`1703030043
		8c3497da00ae023e53c01b4324b665404c1b49e78fe2bf4d17f6348ae8340551
		e363a0cd05f2179c4fef5ad689b5cae0bae94adc63632e571fb79aa91544c639
		4d28a1`)
	traceServerData = unhex(`1703030043
		f65f49fd2df6cd2347c3d30166e3cfddb6308a5906c076112c6a37ff1dbd406b
		5813c0abd734883017a6b2833186b13c14da5d75f33d8760789994e27d82043a
		b88d65`)
	traceClientClose = unhex("1703030013 2c2148163d7938a35f6acf2a6606f8cbd1d9f2")
	traceServerClose = unhex("1703030013 f8141ebdb5eda511e0bce639a56ff9ea825a21")
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
		{traceClientSecret, "88b96ad686c84be55ace18a59cce5c87", "b99dc58cd5ff5ab082fdad19"},
		{traceServerSecret, "a688ebb5ac826d6f42d45c0cc44b9b7d", "c1cad4425a438b5de714830a"},
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
