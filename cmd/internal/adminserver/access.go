// SPDX-License-Identifier: Apache-2.0

package adminserver

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/bcrypt"

	"github.com/zc-relay/zc-relay/cmd/internal/webconfig"
	"github.com/zc-relay/zc-relay/internal/printable"
)

// refusal is the reply to a request that is not allowed.
type refusal struct {
	code int
	text string
	// challenge is the value of WWW-Authenticate, "" for none.
	challenge string
	closes    bool // the connection
}

func (r *refusal) reply(w http.ResponseWriter) {
	if r.closes {
		w.Header().Set("Connection", "close")
	}
	if r.challenge != "" {
		w.Header().Set("WWW-Authenticate", r.challenge)
	}
	if r.code == http.StatusServiceUnavailable || r.code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, r.text, r.code)
}

// access decides which requests the listener for metrics serves. Its methods may be called
// concurrently.
type access struct {
	web   *webconfig.File // nil for none
	hosts hosts
	known passwords
}

// guard serves the requests that are allowed.
func (a *access) guard(handler http.Handler) http.Handler { return serveIf(a.check, handler) }

// guardAnyName is guard for requests for any name: those who scrape metrics use names that only
// they know.
func (a *access) guardAnyName(handler http.Handler) http.Handler {
	return serveIf(a.checkUser, handler)
}

func serveIf(check func(*http.Request) *refusal, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refused := check(r); refused != nil {
			refused.reply(w)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// withHeaders adds the configured headers, and limits the rate of requests.
func (a *access) withHeaders(handler http.Handler) http.Handler {
	if a.web == nil {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := a.web.Current()
		for name, value := range c.Headers {
			w.Header().Set(name, value)
		}
		if c.Limiter != nil && !isHealth(r) && !c.Limiter.Allow() {
			(&refusal{code: http.StatusTooManyRequests,
				text: "more requests than rate_limit of the web configuration file allows"}).reply(w)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// check returns why a request is not allowed, nil if it is. Pages of other sites can send requests
// for a name that they make resolve to this machine; with TLS or users, they get nothing.
func (a *access) check(r *http.Request) *refusal {
	if a.web == nil || a.web.Current().IsPublic() {
		return a.hosts.check(r)
	}
	return a.checkUser(r)
}

// checkUser returns why a request is not allowed, whatever name it is for.
func (a *access) checkUser(r *http.Request) *refusal {
	if a.web == nil {
		return nil
	}
	now := a.web.Current()
	if r.TLS != nil && !now.Accepts(r.TLS) {
		return &refusal{code: http.StatusForbidden, closes: true, text: "the certificate of this " +
			"connection is no longer accepted"}
	}
	if len(now.Users) == 0 {
		return nil
	}
	users := now.Users
	name, password, isGiven := r.BasicAuth()
	unauthorized := &refusal{code: http.StatusUnauthorized, text: "Unauthorized",
		challenge: `Basic realm="zc-relay"`}
	if !isGiven {
		return unauthorized
	}
	isRight, refused := a.known.check(r, users, name, password)
	switch {
	case refused != nil:
		return refused
	case !isRight:
		return unauthorized
	}
	return nil
}

// noUserHash makes the check of an unknown user take as long as that of a known one. No password
// has it.
const noUserHash = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"

// maxPasswords bounds the passwords that are remembered, and maxChecks how many checks may be under
// way or wait.
const (
	maxPasswords = 128
	maxChecks    = 4
)

// passwords checks passwords, and remembers the right ones as keyed hashes: a check takes much
// processor time, by design.
type passwords struct {
	once   sync.Once
	key    [32]byte
	checks places

	mu    sync.Mutex // guards right
	right map[[sha256.Size]byte]bool

	turn sync.Mutex // held by the one check that is under way
}

func (p *passwords) check(r *http.Request, users map[string]string, name,
	password string) (isRight bool, refused *refusal) {
	p.once.Do(func() {
		_, _ = rand.Read(p.key[:]) // never fails
		p.checks.limit, p.right = maxChecks, make(map[[sha256.Size]byte]bool)
	})
	hash, isKnown := users[name]
	if !isKnown {
		hash = noUserHash
	}
	mac := hmac.New(sha256.New, p.key[:])
	fmt.Fprintf(mac, "%d %d %s%s%s", len(name), len(hash), name, hash, password)
	sum := [sha256.Size]byte(mac.Sum(nil))
	p.mu.Lock()
	isRight = p.right[sum]
	p.mu.Unlock()
	if isRight {
		return true, nil
	}
	giveBack := p.checks.take(sourceOf(r))
	if giveBack == nil {
		return false, &refusal{code: http.StatusTooManyRequests,
			text: "other passwords are being checked: try again"}
	}
	defer giveBack()
	p.turn.Lock()
	err := bcrypt.CompareHashAndPassword([]byte(hash), []byte(password))
	p.turn.Unlock()
	if err != nil || !isKnown {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.right) >= maxPasswords {
		clear(p.right)
	}
	p.right[sum] = true
	return true, nil
}

// hosts holds the names, in lower case, that a request may have in Host.
type hosts []string

// newHosts returns the names of this machine: the configured ones, localhost, and what the kernel
// says.
func newHosts(configured []string) hosts {
	all := hosts{"localhost"}
	if name, err := os.Hostname(); err == nil {
		all = append(all, strings.ToLower(name))
	}
	for _, name := range configured {
		all = append(all, strings.ToLower(name))
	}
	return all
}

// check returns why a request is not allowed: its Host is a name, and not of this machine. A web
// page could send it if its own name resolves to this machine's address. An address needs no
// resolution, and a page of that address is ours.
func (h hosts) check(r *http.Request) *refusal {
	host := hostOf(r) // "" is for HTTP/1.0, which no browser speaks
	if _, err := netip.ParseAddr(host); err == nil || host == "" || slices.Contains(h, host) {
		return nil
	}
	return &refusal{code: http.StatusForbidden, text: fmt.Sprintf("host %s is not known as a name "+
		"of this machine: use its address, or add the name to operations.allowed_hosts "+
		"(--allowed-host)", printable.Quote(r.Host, maxEcho))}
}

// hostOf returns the host that a request is for, without a port, in lower case.
func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = strings.Trim(r.Host, "[]")
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// sameOriginOnly rejects all requests that a browser sends for a page of another site, also those
// to read: a profile costs as much as a change.
func sameOriginOnly(handler http.Handler) http.Handler {
	return rejectForeign(func(*http.Request) bool { return false }, handler)
}

// sameOriginOrLink is sameOriginOnly, except that pages of other sites may have links to it.
func sameOriginOrLink(handler http.Handler) http.Handler {
	return rejectForeign(func(r *http.Request) bool {
		return r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
			r.Header.Get("Sec-Fetch-Dest") == "document"
	}, handler)
}

// rejectForeign rejects the requests that browsers send for pages of other sites, except those that
// isAllowed allows.
func rejectForeign(isAllowed func(*http.Request) bool, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
		isForeign := site != "" && site != "same-origin" && site != "none"
		if page, err := url.Parse(origin); origin != "" && (err != nil || page.Host != r.Host) {
			isForeign = true
		}
		if isForeign && !isAllowed(r) {
			(&refusal{code: http.StatusForbidden,
				text: "a page of another site has sent this request"}).reply(w)
			return
		}
		handler.ServeHTTP(w, r)
	})
}
