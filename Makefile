# Everything a developer does. "make help" explains.
#
# build, demo and test need nothing but Linux, Go and make.

SHELL := /bin/bash
# Without -trimpath, each clone would compile everything anew. The scripts inherit this.
export GOFLAGS := $(strip $(shell go env GOFLAGS) -trimpath)
TOOL := go tool -modfile=$(CURDIR)/tools/go.mod
# Symbols and debug information stay, for profilers and debuggers.
LDFLAGS = $(shell scripts/ldflags.sh)

# The race detector needs a C compiler.
RACE := $(shell printf 'int main(void) { return 0; }' | $${CC:-cc} -x c -o /dev/null - 2>/dev/null && echo -race)
# How long to fuzz each target.
FUZZTIME := 5s
# How many schedules to simulate, and the seed of the first.
SEEDS := 1000
FIRST := 1

# The linter needs files in their true places. Its cache, and what cgo makes with -trimpath, name the
# clone that has first filled a cache, which may be gone.
LINT_GOFLAGS := $(filter-out -trimpath,$(GOFLAGS))

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build all programs into bin/, without the providers for hardware (pure Go)
	CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

# Where the programs of each architecture go: those for this machine to bin/.
ARCHITECTURES := amd64 arm64
directory_of = bin/$(if $(filter $(1),$(shell go env GOHOSTARCH)),,linux-$(1))

.PHONY: build-hardware
build-hardware: ## Build all programs with the providers for hardware, too, into bin/ and, for the other architecture, bin/linux-ARCH/ (gcc)
	$(foreach a,$(ARCHITECTURES),scripts/build-hardware.sh $(a) $(call directory_of,$(a)) -ldflags '$(LDFLAGS)' &&) true

.PHONY: build-ceph
build-ceph: ## Build the target with volumes on Ceph RBD as bin/target-ceph (gcc, librbd-dev, librados-dev)
	scripts/build-ceph.sh bin/target-ceph -ldflags '$(LDFLAGS)'

.PHONY: build-emulation
build-emulation: ## Build all programs with an emulation of libdoca for their providers doca, into bin/emulation/, to measure them (gcc)
	CGO_ENABLED=1 go -C libdoca build -ldflags '$(LDFLAGS)' -o '$(CURDIR)/bin/emulation/' ./cmd/...

.PHONY: libdoca
libdoca: ## Build the emulation of libdoca, for programs written for DOCA, with its headers into bin/libdoca/ (gcc)
	libdoca/scripts/build.sh $(shell go env GOHOSTARCH) bin/libdoca

.PHONY: libzcclient
libzcclient: ## Build the C library for clients, with its header, into bin/libzcclient/ (gcc)
	libzcclient/scripts/build.sh $(shell go env GOHOSTARCH) bin/libzcclient

.PHONY: demo
demo: build ## Run target, relay and initiator as processes; move and compare a file; short benchmark
	scripts/demo.sh

.PHONY: demo-disk
demo-disk: build ## Serve a volume over NBD; make a file system, move it there and back, and check it (e2fsprogs, libnbd-bin, qemu-utils)
	scripts/demo-disk.sh

.PHONY: demo-ublk
demo-ublk: ## Serve a volume as a block device in a small VM with Linux 6.12: make a file system, kill the gateway, go on (Debian, QEMU, e2fsprogs)
	test/ublk/demo.sh

# The demonstration promises to need no root.
.PHONY: demo-unprivileged
demo-unprivileged: build ## Run demo-disk as the user nobody (root)
	directory=$$(mktemp -d) && trap 'rm -rf "$$directory"' EXIT && chmod 755 "$$directory" && \
	cp -r bin scripts "$$directory/" && \
	setpriv --reuid=nobody --regid=nogroup --clear-groups "$$directory/scripts/demo-disk.sh"

# The programs that tests run, each set built once for all tests. Those behind RACE need a C compiler.
PROGRAM_SETS := ZC_RELAY_PROGRAMS ZC_RELAY_MANUAL_PROGRAMS ZC_RELAY_EXAMPLE_PROGRAMS \
	$(if $(RACE),ZC_RELAY_RACE_PROGRAMS ZC_RELAY_EMULATION_PROGRAMS ZC_RELAY_LIBDOCA \
	ZC_RELAY_LIBZCCLIENT)
with_programs = directory=$$(mktemp -d) && trap 'rm -rf "$$directory"' EXIT && \
	variables=$$(go run ./internal/testkit/programs "$$directory" $(PROGRAM_SETS)) && eval "$$variables" &&

# In libdoca/, whose workspace has this module too, one command compiles and tests both. Its own
# packages are ./..., those of this module ../...
#
# Tests wait as much as they compute, so there are more of them than processors, and those that wait
# most begin first. "make lint" vets.
# Results are not taken from the cache, because Go does not see which programs a test runs.
# The race detector waits for a second at the end of each process, for races of other threads.
test: export GORACE := atexit_sleep_ms=100
.PHONY: test
test: ## Run all tests, with the race detector where a C compiler is found
	@echo "race detector: $(if $(RACE),on,off (no working C compiler))"
	$(with_programs) go -C libdoca test $(RACE) -count=1 -vet=off -p $$(($$(nproc) + 2)) \
		-timeout 30m ../test/e2e ../test/chain $(if $(RACE),./test) ./... ../...
	go -C bench test $(RACE) -vet=off ./...

.PHONY: test-repeatedly
test-repeatedly: ## Run all tests three times and completely, with new seeds
	$(with_programs) ZC_RELAY_SEED=fresh go -C libdoca test $(RACE) -tags complete -count=3 \
		-vet=off -timeout 60m ./... ../...

# What the gate and the suites with peers are: test/suites.
SUITES = go run ./test/suites

.PHONY: gate
gate: ## What every change has to pass: 12 minutes on two idle cores (installs nothing: scripts/install-debian.sh)
	$(SUITES) gate
# A test whose program is not installed fails instead of being skipped.
gate: export CI := true

SUITE :=
.PHONY: peers
peers: ## Run the complete suites with real peers, or those in SUITE: make peers SUITE="siw ceph" (hours)
	$(SUITES) peers $(SUITE)
peers: export CI := true

REF := origin/main
.PHONY: peers-since
peers-since: ## Run the suites whose sources have changed since the commit REF
	$(SUITES) since $(REF)
peers-since: export CI := true

# The smoke tests show that each real peer still works with the product. The suites test the rest.
.PHONY: smoke-rdma smoke-ceph smoke-package smoke-arm64
smoke-rdma: ## A few tests of the provider verbs on Soft-RoCE, in a small VM
	test/smoke/rdma.sh
smoke-ceph: ## Move data to a Ceph image and back, in a small cluster
	test/smoke/ceph.sh
smoke-package: ## Install, use, and purge one package in a copy of the root directory (root)
	test/smoke/package.sh
smoke-arm64: ## Build for arm64, and test there what depends on the architecture
	GOARCH=arm64 CGO_ENABLED=0 go build ./...
	scripts/test-arm64.sh ./internal/prefetch ./internal/blockcopy ./pkg/iomsg ./pkg/doca

# "go list -export" compiles, and does not link: what is linked is not cached.
.PHONY: prepare
prepare: ## Fill the caches: compile all programs, tests, and tools, and make the VM's image
	$(TOOL) golangci-lint --version
	$(TOOL) buf --version
	CGO_ENABLED=0 go build ./...
	CGO_ENABLED=0 go -C bench build ./...
	GOARCH=arm64 CGO_ENABLED=0 go build ./...
	go -C libdoca list $(RACE) -test -export -deps ./... ../... >/dev/null
	go list -test -export -deps ./test/simulation >/dev/null
	go build -tags netgo,osusergo ./cmd/...
	. scripts/cross-compiler.sh && harden && go list -tags netgo,osusergo -buildmode=c-shared -export -deps ./libzcclient/core >/dev/null
	. scripts/cross-compiler.sh && harden && go build -tags netgo,osusergo -buildmode=pie ./cmd/...
	go -C bench list $(RACE) -test -export -deps ./... >/dev/null
	go -C tools/kubernetes list -test -export -deps . >/dev/null
	go -C tools/site list -test -export -deps . >/dev/null
	GOFLAGS='$(LINT_GOFLAGS)' go -C libdoca list -export -deps -test ./... ../... >/dev/null
	go build -modfile=tools/nfpm/go.mod -o /dev/null github.com/goreleaser/nfpm/v2/cmd/nfpm
	RDMA_VM_SIW=no test/siw/rdma-vm.sh --build-only

# The tests of the chain run over iWARP by default, and programs choose shared memory by themselves.
IWARP = --rdma-provider iwarp
.PHONY: test-providers
test-providers: ## Test hooked providers completely, the chain over shared memory, and programs that die over iWARP
	go -C libdoca test -tags complete -run 'Conform|TheSuiteAccepts' ../pkg/comch/... ../pkg/rdma/... ../pkg/volume/hook ./test/comch ./test/rdma
	go test -tags complete ./test/chain -rdma auto
	go test -tags complete ./test/e2e -run TestNothingIsLostInACampaign
	ZC_RELAY_E2E_TARGET_FLAGS='$(IWARP)' ZC_RELAY_E2E_RELAY_FLAGS='$(IWARP)' go test ./test/e2e \
		-run 'TestAKilled|TestAStoppedTarget|TestNBDClientsNotice|TestVerify|TestBlockingMethods'

# Random calls ask for memory without bound, and the sanitizer of threads would touch all of it.
TSAN_OPTIONS = max_allocation_size_mb=256 allocator_may_return_null=1 halt_on_error=1
.PHONY: test-sanitizers
test-sanitizers: ## Test the emulation of libdoca with the sanitizers of addresses, undefined behaviour, and threads
	ASAN_OPTIONS=detect_leaks=0 go -C libdoca test -asan -count=1 .
	CGO_CFLAGS='-O1 -g -fsanitize=undefined -fno-sanitize-recover=all' \
		CGO_LDFLAGS=-fsanitize=undefined go -C libdoca test -count=1 .
	directory=$$(mktemp -d) && trap 'rm -rf "$$directory"' EXIT && \
	CGO_CFLAGS='-O1 -g -fsanitize=thread' CGO_LDFLAGS=-fsanitize=thread \
		go -C libdoca test -c -o "$$directory/threads" . && \
	cd libdoca && TSAN_OPTIONS='$(TSAN_OPTIONS)' setarch -R "$$directory/threads"

.PHONY: test-short
test-short: ## Run the quick tests without the race detector
	go -C libdoca test -short ./... ../...
	go -C bench test -short ./...

.PHONY: test-tools
test-tools: ## Test what needs other programs: a browser, Prometheus, a terminal, shells, Wireshark, NBD clients (chromium, prometheus, tmux, bash-completion, zsh, fish, tshark, libnbd-bin, python3-libnbd, nbdkit, qemu-utils, fio, e2fsprogs, xfsprogs)
	go test -count=1 -tags complete -run 'NBD|QEMU|FIO|FileSystem|AFlushReports|TheGatewayServes' ./test/e2e
	go test $(RACE) -count=1 -run 'TestThePageShowsLiveRatesInABrowser|TestLatencyQueries|InATerminal|TestShells' ./test/e2e
	go test $(RACE) -count=1 -run TestTshark ./pkg/rdma/iwarp
	go test -count=1 -tags complete ./libzcclient/test -run 'Fio|Tour'
# A test whose program is not installed fails instead of being skipped.
test-tools: export CI := true

.PHONY: test-siw
test-siw: ## Test iWARP against the Linux kernel's own, in a small VM (Debian, QEMU)
	test/siw/run.sh

.PHONY: test-pages
test-pages: build ## Run the commands of the users' pages, and compare what they print (root; jq, libnbd-bin, qemu-utils, promtool, openssl)
	go -C tools/site test -count=1 -tags complete .
	go test -count=1 -tags complete -timeout 30m ./test/pages
# A test whose program is not installed fails instead of being skipped.
test-pages: export CI := true

.PHONY: test-ublk
test-ublk: ## Test block devices of the kernel in a small VM with Linux 6.12 (Debian, QEMU, fio, e2fsprogs, xfsprogs, btrfs-progs)
	test/ublk/run.sh

.PHONY: bench-ublk
bench-ublk: ## Measure a block device of the kernel beside the kernel's NBD client, in that VM (as test-ublk, and nbd-client)
	BENCH=1 TESTS=none test/ublk/run.sh

.PHONY: test-encryption
test-encryption: ## Try the recipes of docs/guides/encryption.md in a small VM (Debian, QEMU, cryptsetup-bin, wireguard-tools)
	test/encryption/run.sh

.PHONY: test-devices
test-devices: ## Detach a disk from under a target, and attach it again, in a small VM (Debian, QEMU)
	test/devices/run.sh

# How often to play each round of test-ends.
ROUNDS := 3
.PHONY: test-ends
test-ends: ## Let owners of a volume and NBD clients end while what they have sent is in progress, and heirs begin (root)
	set -o pipefail; go test -count=1 -timeout 0 -parallel 12 -v ./test/ends -rounds $(ROUNDS) | \
		grep -v -e '^=== ' -e '--- PASS'

# The name spaces end with the test, and with them its daemons and mounts, whatever ends it.
.PHONY: fleet
fleet: ## Run relays, targets, and clients with Prometheus, and see that each event raises its alerts and no others: 4 minutes (root; prometheus)
	nice -n 5 unshare --mount --pid --fork --kill-child --mount-proc \
		go test -count=1 -tags fleet -timeout 20m -v ./test/fleet
# A test whose program is not installed fails instead of being skipped.
fleet: export CI := true

.PHONY: test-ceph
test-ceph: lint-ceph ## Test volumes on Ceph RBD against a small cluster that it starts (ceph-mon, ceph-mgr, ceph-osd, ceph-common, librbd-dev, librados-dev, nbdkit, fio, qemu-utils)
	test/ceph/run.sh

.PHONY: lint-ceph
lint-ceph:
	tags=$$(scripts/build-ceph.sh --tags) && \
	$(TOOL) golangci-lint run --build-tags "$$tags" ./pkg/volume/rbd/... ./test/e2e

# Packages whose unit tests also run on arm64.
ARM64_PACKAGES := ./internal/prefetch ./internal/blockcopy ./pkg/iomsg ./pkg/controlmsg ./pkg/rdma/iwarp ./pkg/comch/emulated ./pkg/dma/software \
	./pkg/doca ./libdoca/test/dma ./libdoca/test/comch

.PHONY: test-verbs
test-verbs: ## Test the verbs provider on Soft-RoCE and siw, in a small VM (Debian, QEMU)
	test/verbs/run.sh

.PHONY: test-arm64
test-arm64: ## Run unit tests built for linux/arm64 under qemu-user (qemu-user-static, gcc for arm64)
	scripts/test-arm64.sh $(ARM64_PACKAGES)

lint lint-ceph: export GOLANGCI_LINT_CACHE := $(CURDIR)/bin/lint-cache
lint lint-ceph: export GOFLAGS := $(LINT_GOFLAGS)
.PHONY: lint
lint: check-prometheus ## Check style, dead code, and protocol definitions; warn about heavy sentences
	lint=$$($(TOOL) -n golangci-lint) && cd libdoca && "$$lint" run ./... ../...
	$(TOOL) golangci-lint run --build-tags fleet ./test/fleet
	go vet -tags ublk ./test/e2e # which runs in a VM only
	cd bench && $(TOOL) golangci-lint run ./...
	$(TOOL) buf lint
	$(TOOL) buf format -d --exit-code
	go tool -modfile=$(CURDIR)/tools/actionlint/go.mod actionlint
	scripts/deadcode.sh
	scripts/check-english.sh

.PHONY: generate
generate: ## Generate code from proto/, and in docs/ the reference, a schema, and descriptions of the API (gcc)
	$(TOOL) buf generate
	go test $(RACE) -vet=off ./cmd/internal/service -run TestTheDocuments -update
	go test $(RACE) -vet=off ./cmd/zc-relay/command ./cmd/target/command ./cmd/initiator/command \
		./cmd/dma-copy/command -run TestTheReference -update
	go test $(RACE) -vet=off ./cmd/internal/config -run TestTheSchemaOfChannels -update
	go test $(RACE) -vet=off ./cmd/internal/adminserver -run TestTheDescriptionsOfTheAPI -update
	go -C libdoca test -vet=off ./test/functions -run TestTheTable -update

.PHONY: check-generated
check-generated: generate ## Fail if generated code, go.mod or formatting is not up to date
	git diff --exit-code
	go mod tidy -diff
	cd libdoca && go mod tidy -diff
	cd bench && go mod tidy -diff
	cd tools && go mod tidy -diff
	cd tools/actionlint && go mod tidy -diff
	cd tools/nfpm && go mod tidy -diff
	cd tools/kubernetes && go mod tidy -diff
	cd tools/site && go mod tidy -diff
	test -z "$$(gofmt -l $$(git ls-files '*.go'))"

.PHONY: site
site: ## Render the documentation into bin/site/: static files that need no server
	go -C tools/site run . -output '$(CURDIR)/bin/site' -version "$$(git describe --tags --always --dirty)"

.PHONY: check-site
check-site: ## Fail if a document links to what does not exist, or the home page lacks a page
	go -C tools/site test -count=1 .

.PHONY: check-kubernetes
check-kubernetes: build ## Check the Helm chart: helm lint, values, and every field of what it renders
	cd tools/kubernetes && ZC_RELAY_PROGRAMS='$(CURDIR)/bin' go test -count=1 .

.PHONY: kubernetes-manifest
kubernetes-manifest: ## Write deploy/kubernetes/relay*.yaml, which are what the chart renders
	cd tools/kubernetes && go test . -run TestThePlainManifests -update

.PHONY: check-tree
check-tree: ## Fail if a tracked file is a compiled program or larger than 1 MB, or a document names a missing file
	scripts/check-tree.sh

# The benchmark programs have a module of their own, bench/. Results go to RESULTS.
MEASURE := bin/bench/measure
RESULTS := bench-results
DOCA_CHAIN := --programs bin/emulation --comch emulated,doca --isolation staged

.PHONY: build-bench
build-bench: build ## Build all programs, and the benchmark programs into bin/bench/
	CGO_ENABLED=0 go -C bench build -ldflags '$(LDFLAGS)' -o '$(CURDIR)/bin/bench/' ./...

.PHONY: bench
bench: build-bench ## Measure each hop alone, the chain, and, last, the chain beside the peers that are installed, with a picture
	go -C libdoca test -run '^$$' -bench . -benchmem ../pkg/... ./test/comch
	go test -run '^$$' -bench FileCopy ./test/e2e
	$(MEASURE) chain --series small,large,shm --output-directory '$(RESULTS)'
	$(MEASURE) peers --install=false --output-directory '$(RESULTS)/peers'
	@echo "the picture of the chain beside its peers: $(RESULTS)/peers/result.svg"

.PHONY: check-budget
check-budget: build-bench ## Fail if a layer of the data path needs a fifth more instructions for an IO than its budget (valgrind)
	$(MEASURE) budget

.PHONY: bench-chain
bench-chain: build-bench ## Measure the chain with all series, beside a bare chain: JSON, Markdown and SVG into RESULTS
	$(MEASURE) chain --output-directory '$(RESULTS)'

.PHONY: bench-doca
bench-doca: build-bench build-emulation ## Measure the chain over the providers doca, beside the emulated ones, and what these providers cost alone (gcc)
	go test -run '^$$' -bench Overhead ./pkg/comch/doca
	$(MEASURE) chain $(DOCA_CHAIN) --queue-depth 1,32,128 --output-directory '$(RESULTS)/doca'

.PHONY: bench-peers
bench-peers: build-bench ## Install what Debian offers, and measure the chain beside it: iperf3, fio over NBD, ucx_perftest, fi_pingpong
	$(MEASURE) peers --output-directory '$(RESULTS)/peers'

.PHONY: bench-scrape
bench-scrape: build ## Measure what a scrape of the metrics every 100 ms costs
	scripts/bench-scrape.sh

.PHONY: bench-sessions
bench-sessions: ## Measure what sessions cost targets and relays, and what TLS handshakes cost (docs/guides/scaling.md)
	go test -run '^$$' -bench SessionsOfATarget -benchtime 1000x ./test/e2e
	go test -run '^$$' -bench SessionsOfARelay -benchtime 200x ./test/e2e
	go test -run '^$$' -bench Handshake ./pkg/mutualtls

.PHONY: bench-ceph
bench-ceph: ## Measure the chain with a volume on Ceph beside fio, against a small cluster (as test-ceph)
	BENCH=1 test/ceph/run.sh

# Building the tests of a package takes longer than its benchmarks.
BENCHMARK_PACKAGES = $(addprefix ../,$(sort $(dir $(shell grep -rlE '^func Benchmark' --include='*_test.go' cmd internal libdoca pkg test))))

.PHONY: bench-once
bench-once: build-bench build-emulation ## Run every benchmark once, so that none rots
	go -C libdoca test -vet=off -run '^$$' -bench . -benchtime 1x $(BENCHMARK_PACKAGES)
	$(MEASURE) chain --repetitions 1 --runtime 50ms --warmup 50ms --volume-size 64MiB --output-directory '$(RESULTS)/once'
	$(MEASURE) chain $(DOCA_CHAIN) --repetitions 1 --runtime 50ms --warmup 50ms --volume-size 64MiB --output-directory '$(RESULTS)/once/doca'
	$(MEASURE) peers --install=false --repetitions 1 --runtime 50ms --warmup 50ms --volume-size 64MiB --output-directory '$(RESULTS)/once/peers'

.PHONY: fuzz
fuzz: ## Fuzz every target for FUZZTIME (5s)
	scripts/fuzz.sh '$(FUZZTIME)'

.PHONY: simulate
simulate: ## Run SEEDS schedules of the simulation from the seed FIRST on
	scripts/simulate.sh $(SEEDS) $(FIRST)

# The mutants to run: a pattern for their names, or nothing for all of them.
MUTANTS :=

.PHONY: mutants
mutants: ## Break one promise at a time and check that a test notices; write the table of docs/dev/mutants.md (MUTANTS=PATTERN)
	go run ./test/mutants -run '$(MUTANTS)' -write docs/dev/mutants.md

.PHONY: soak
soak: export ZC_RELAY_SEED = fresh
soak: ## Long tests of everything, long fuzzing, a million simulated schedules (takes most of a day on two cores)
	go -C libdoca test $(RACE) -count=1 -tags soak -timeout 60m ../pkg/... ../cmd/internal/service ../test/... ./test/...
	go test $(RACE) -count=1 -timeout 30m ./test/chain -rdma auto
	scripts/fuzz.sh 60s
	KILLS=100 test/packages/run.sh
	TAGS=soak test/ceph/run.sh
	scripts/simulate.sh 1000000

.PHONY: packages
packages: ## Make .deb and .rpm packages for amd64 and arm64 in dist/ (gcc for both)
	scripts/packages.sh

.PHONY: release
release: ## Check, tag, package, and sign a release in dist/vVERSION: make release VERSION=0.1.0
	scripts/release.sh '$(VERSION)'

.PHONY: test-packages
test-packages: check-rules ## Install, use, upgrade and remove the .deb packages under a real systemd (root; systemd, promtool, rpm, lintian, openssl, pkg-config)
	test/packages/run.sh

.PHONY: check-prometheus check-rules
check-prometheus: ## Check the syntax of the Prometheus rules and of the example configuration (promtool)
	promtool check rules deploy/prometheus/*.yaml
	promtool check config --syntax-only deploy/prometheus/examples/scrape.yaml
check-rules: check-prometheus ## Test the Prometheus rules with what started daemons export
	CI=true go test -count=1 -vet=off ./cmd/internal/service -run 'Rules|Alert'

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist $(RESULTS)
