#!/usr/bin/env bash
# Builds .deb and .rpm packages for amd64 and arm64 in dist/, with the providers for hardware: see
# build-hardware.sh for the compilers that it needs. $PACKAGE_VERSION sets their version;
# the default derives from the last tag and the commit. $PACKAGE_ARCHITECTURES, $PACKAGE_FORMATS,
# $PACKAGE_NAMES, and $PACKAGE_DIRECTORY override architectures, formats, names, and directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

directory=${PACKAGE_DIRECTORY:-dist}
read -r -a architectures <<<"${PACKAGE_ARCHITECTURES:-amd64 arm64}"
read -r -a formats <<<"${PACKAGE_FORMATS:-deb rpm}"
names="zc-relay zc-relay-target zc-relay-initiator dma-copy libdoca-emulation zc-relay-target-ceph"
names=${PACKAGE_NAMES:-$names}
is_wanted() { [[ " $names " == *" $1 "* ]]; }

# make_package CONFIGURATION: make a package of it in each format
make_package() {
    local format
    for format in "${formats[@]}"; do
        dist/manual/bin/nfpm package --config "$1" --packager "$format" --target "$directory/"
    done
}

module=github.com/zc-relay/zc-relay
# The installed name of each program, which deploy/packages uses, and its name in cmd/.
declare -A programs=(
    [zc-relay]=zc-relay [zc-relay-target]=target [zc-relay-initiator]=initiator [dma-copy]=dma-copy
)
declare -A directories=(
    [zc-relay]=/etc/zc-relay/tls
    [zc-relay-target]="/etc/zc-relay/target-tls /var/lib/zc-relay-target"
)
declare -A users=([zc-relay]="zc-relay zc-relay-client" [zc-relay-target]=zc-relay-target)
export SOURCE_DATE_EPOCH PACKAGE_VERSION PACKAGE_ARCH
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)

if [ -z "${PACKAGE_VERSION:-}" ]; then
    # Before the first tag: a version that sorts before every release.
    date=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S)
    PACKAGE_VERSION=0~git$date.$(git rev-parse --short=12 HEAD)
    if tag=$(git describe --tags --match 'v[0-9]*' 2>/dev/null); then
        PACKAGE_VERSION=$(sed -E 's/^v//; s/-([0-9]+)-g/+\1.g/; s/-/~/g' <<<"$tag")
    fi
fi

# The programs write their own manual pages and completions if they are built with the tag manual.
rm -rf dist/manual dist/stage
for name in "${!programs[@]}"; do
    is_wanted "$name" || continue
    CGO_ENABLED=0 go build -tags manual -o "dist/manual/bin/$name" "./cmd/${programs[$name]}"
    "dist/manual/bin/$name" "dist/manual/$name"
    gzip --no-name --best "dist/manual/$name"/man/*.1
done

# Build the version of nfpm that tools/nfpm pins, for this machine.
go build -modfile=tools/nfpm/go.mod -o dist/manual/bin/nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm

for PACKAGE_ARCH in "${architectures[@]}"; do
    rm -rf dist/stage
    scripts/build-hardware.sh "$PACKAGE_ARCH" dist/stage/bin \
        -ldflags "-s -w -X $module/internal/buildinfo.version=$PACKAGE_VERSION"
    for name in "${!programs[@]}"; do
        is_wanted "$name" || continue
        mv "dist/stage/bin/${programs[$name]}" "dist/stage/$name"
        for script in postinstall preremove postremove; do
            sed "s|@UNIT@|$name|g; s|@DIRECTORIES@|${directories[$name]:-}|g; s|@USERS@|${users[$name]:-}|g" \
                "deploy/packages/$script.sh" >"dist/stage/$name.$script.sh"
        done
        make_package "deploy/packages/$name.yaml"
    done
    # Two packages: what programs need to run, and what compilers need.
    if is_wanted libdoca-emulation; then
        scripts/build-libdoca.sh "$PACKAGE_ARCH" dist/stage/libdoca /usr/lib/libdoca-emulation
        mkdir -p dist/stage/libdoca-dev/lib
        mv dist/stage/libdoca/{include,dpu,host,try-doca-samples} dist/stage/libdoca-dev/
        mv dist/stage/libdoca/lib/{link,pkgconfig} dist/stage/libdoca-dev/lib/
        make_package deploy/packages/libdoca-emulation.yaml
        make_package deploy/packages/libdoca-emulation-dev.yaml
    fi
    is_wanted zc-relay-target-ceph || continue
    # The target with librbd links it, and can only be built for this machine.
    if [ "$PACKAGE_ARCH" != "$(go env GOHOSTARCH)" ] || [ ! -e /usr/include/rbd/librbd.h ]; then
        echo "packages: no zc-relay-target-ceph for $PACKAGE_ARCH: it needs librbd-dev and" \
            "librados-dev on a machine of that architecture" >&2
        continue
    fi
    scripts/build-ceph.sh dist/stage/zc-relay-target-ceph \
        -ldflags "-s -w -X $module/internal/buildinfo.version=$PACKAGE_VERSION"
    deploy/packages/zc-relay-target-ceph.sh >dist/stage/zc-relay-target-ceph.yaml
    make_package dist/stage/zc-relay-target-ceph.yaml
done
rm -rf dist/stage dist/manual
