// SPDX-License-Identifier: Apache-2.0

package mutualtls_test

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

func TestNamesAreOfOneKind(t *testing.T) {
	for text, want := range map[string]string{
		"Dpu-7.Example.":                 "dns:dpu-7.example",
		"dns:dpu_7":                      "dns:dpu_7",
		"DNS:relay.example":              "dns:relay.example",
		"10.0.0.5":                       "ip:10.0.0.5",
		"::ffff:10.0.0.5":                "ip:10.0.0.5",
		"2001:DB8::1":                    "ip:2001:db8::1",
		"ip:2001:db8:0::1":               "ip:2001:db8::1",
		"uri:urn:zc:Tenant-A":            "uri:urn:zc:Tenant-A",
		"uri:spiffe://Example.org/relay": "uri:spiffe://Example.org/relay",
		"spiffe://example.org/relay":     "write uri:spiffe://example.org/relay",
		"urn:zc:a":                       "write uri:urn:zc:a",
		"a/b":                            "is neither",
		"dns:10.0.0.5":                   "is not a DNS name",
		"*.example":                      "without wildcards",
		"a..b":                           "is not a DNS name",
		"-a":                             "is not a DNS name",
		"":                               "is not a DNS name",
		"ip:dpu":                         "is not an IP address",
		"fe80::1%eth0":                   "without a zone",
		"uri:relay":                      "with a scheme",
		"uri:\x00:a":                     "with a scheme",
		strings.Repeat("a", 300):         "is not a DNS name",
		strings.Repeat("a", 3000):        "longer than",
	} {
		name, err := mutualtls.ParseName(text)
		got := name.String()
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%q: %s; want %s", text, got, want)
		}
	}
}

func TestANameMatchesOnlyItsKind(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	uri := func(text string) mutualtlstest.Option {
		return func(c *x509.Certificate) {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			c.URIs = append(c.URIs, u)
		}
	}
	dns := func(text string) mutualtlstest.Option {
		return func(c *x509.Certificate) { c.DNSNames = append(c.DNSNames, text) }
	}
	server, err := mutualtls.Load(authority.Write(t.TempDir(), []string{"target.test"}), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		names   []string
		option  mutualtlstest.Option
		allowed string
		welcome bool
	}{
		"a URI":                        {nil, uri("spiffe://o/r"), "uri:spiffe://o/r", true},
		"a URI in other letters":       {nil, uri("urn:zc:tenant-a"), "uri:urn:zc:Tenant-A", false},
		"an address":                   {[]string{"10.0.0.5"}, nil, "10.0.0.5", true},
		"an address as a DNS name":     {nil, dns("10.0.0.5"), "10.0.0.5", false},
		"a DNS name in other letters":  {[]string{"DPU.test"}, nil, "dns:dpu.TEST", true},
		"a DNS name of the text":       {[]string{"x"}, nil, "uri:x:", false},
		"a wildcard above the name":    {nil, dns("*.test"), "dpu.test", false},
		"a URI whose text is the name": {nil, uri("dpu.test"), "dpu.test", false},
	} {
		t.Run(name, func(t *testing.T) {
			options := []mutualtlstest.Option{func(*x509.Certificate) {}}
			if test.option != nil {
				options = append(options, test.option)
			}
			client, err := mutualtls.Load(authority.Write(t.TempDir(), test.names, options...), nil)
			if err != nil {
				t.Fatal(err)
			}
			config := server.Server(mutualtlstest.Names(test.allowed))
			err = handshake(t, client.Client("target.test"), config)
			if (err == nil) != test.welcome {
				t.Errorf("the server says %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "none of which is an allowed name") {
				t.Error(err)
			}
		})
	}
}
