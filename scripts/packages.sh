#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds .deb and .rpm packages for amd64 and arm64 in dist/, with the providers for hardware: see
# build-hardware.sh for the compilers that it needs. $PACKAGE_VERSION sets their version;
# the default derives from the last tag and the commit. $PACKAGE_ARCHITECTURES, $PACKAGE_FORMATS,
# $PACKAGE_NAMES, and $PACKAGE_DIRECTORY override architectures, formats, names, and directory.
set -euo pipefail
umask 022 # whatever that of the user is: trees in packages have the modes of the files here
cd "$(dirname "${BASH_SOURCE[0]}")/.."

directory=${PACKAGE_DIRECTORY:-dist}
read -r -a architectures <<<"${PACKAGE_ARCHITECTURES:-amd64 arm64}"
read -r -a formats <<<"${PACKAGE_FORMATS:-deb rpm}"
names="zc-relay zc-relay-target zc-relay-initiator dma-copy libdoca-emulation zc-relay-target-ceph"
names+=" libzcclient"
names+=" zc-relay-target-static zc-relay-initiator-static"
names=${PACKAGE_NAMES:-$names}
is_wanted() { [[ " $names " == *" $1 "* ]]; }
is_or_has_wanted_variant() { [[ " $names " =~ \ $1(-ceph|-static)?\  ]]; }

# make_script FILE NAME: print a script of deploy/packages for a package
make_script() {
    sed -e "/^ *@REMOVE_USER@\$/{s/@.*//; r deploy/packages/remove-user.sh
        d}" "deploy/packages/$1.sh" |
        sed "s|@UNIT@|$2|g; s|@DIRECTORIES@|${directories[$2]:-}|g; s|@USERS@|${users[$2]:-}|g"
}

# write_notices NAME BINARY FLAG...: write the licenses of what others have written in a package,
# and the bill of materials of its program or library
write_notices() {
    local name=$1 binary=$2 package=$1
    shift 2
    [ "$name" != dma-copy ] || package=zc-relay-dma-copy
    dist/manual/bin/notices -arch "$PACKAGE_ARCH" -sbom "dist/stage/$name.cdx.json" \
        -binary "$PWD/$binary" -name "$package" -version "$PACKAGE_VERSION" "$@" \
        >"dist/stage/$name.notices"
}

# make_package CONFIGURATION: make a package of it in each format
make_package() {
    local format
    for format in "${formats[@]}"; do
        dist/manual/bin/nfpm package --config "$1" --packager "$format" --target "$directory/"
    done
}

# check_modes: fail if others could not use, or could change, what the .deb packages install
check_modes() {
    local package wrong
    command -v dpkg-deb >/dev/null || return 0
    for package in "$directory"/*"$PACKAGE_VERSION"*.deb; do
        [ -e "$package" ] || continue
        wrong=$(dpkg-deb --fsys-tarfile "$package" | tar -tv | awk '
            $1 !~ /^(drwxr-xr-x|-rw-r--r--|-rwxr-xr-x|l.*)$/ ||
                $NF ~ /^\.\/usr\/bin\/./ && $1 !~ /^(-rwxr-xr-x|l.*)$/ { print $1, $NF }')
        [ -z "$wrong" ] && continue
        printf 'packages: wrong modes in %s, set file_info in its configuration:\n%s\n' \
            "$package" "$wrong" >&2
        return 1
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
    is_or_has_wanted_variant "$name" || continue
    CGO_ENABLED=0 go build -tags manual -ldflags "-X $module/internal/buildinfo.version=$PACKAGE_VERSION" \
        -o "dist/manual/bin/$name" "./cmd/${programs[$name]}"
    # So that defaults which depend on the user are those of root.
    XDG_RUNTIME_DIR=/run "dist/manual/bin/$name" "dist/manual/$name"
    gzip --no-name --best "dist/manual/$name"/man/*
done

go build -o dist/manual/bin/notices ./deploy/packages/notices
# Build the version of nfpm that tools/nfpm pins, for this machine.
go build -modfile=tools/nfpm/go.mod -o dist/manual/bin/nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm

# The symbols stay, for profilers. Debug information would double the packages.
ldflags="-w $(scripts/ldflags.sh "$PACKAGE_VERSION")"
for PACKAGE_ARCH in "${architectures[@]}"; do
    rm -rf dist/stage
    scripts/build-hardware.sh "$PACKAGE_ARCH" dist/stage/bin -ldflags "$ldflags"
    # Debian's policy asks for it. What users want to know is in CHANGELOG.md.
    gzip --no-name --best >dist/stage/changelog.gz <<END
zc-relay ($PACKAGE_VERSION) unstable; urgency=medium

  * See CHANGELOG.md in this directory.

 -- zc-relay maintainers <maintainers@zc-relay.invalid>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
    for name in "${!programs[@]}"; do
        is_or_has_wanted_variant "$name" || continue
        mv "dist/stage/bin/${programs[$name]}" "dist/stage/$name"
        scripts=
        [ "$name" = zc-relay-initiator ] && scripts=initiator-
        for script in postinstall preremove postremove; do
            make_script "$scripts$script" "$name" >"dist/stage/$name.$script.sh"
        done
        write_notices "$name" "dist/stage/$name" -cgo -tags netgo,osusergo "./cmd/${programs[$name]}"
        ! is_wanted "$name" || make_package "deploy/packages/$name.yaml"
        is_wanted "$name-static" || continue
        CGO_ENABLED=0 GOOS=linux GOARCH=$PACKAGE_ARCH go build -trimpath -ldflags "$ldflags" \
            -o "dist/stage/$name-static" "./cmd/${programs[$name]}"
        write_notices "$name-static" "dist/stage/$name-static" "./cmd/${programs[$name]}"
        deploy/packages/variant.sh "$name" static >"dist/stage/$name-static.yaml"
        make_package "dist/stage/$name-static.yaml"
    done
    # Two packages: what programs need to run, and what compilers need.
    if is_wanted libdoca-emulation; then
        libdoca/scripts/build.sh "$PACKAGE_ARCH" dist/stage/libdoca /usr/lib/libdoca-emulation
        mkdir -p dist/stage/libdoca-dev/lib
        mv dist/stage/libdoca/{include,dpu,host,try-doca-samples} dist/stage/libdoca-dev/
        mv dist/stage/libdoca/lib/{link,pkgconfig} dist/stage/libdoca-dev/lib/
        chmod 644 dist/stage/libdoca-dev/lib/link/*
        write_notices libdoca-emulation dist/stage/libdoca/lib/libdoca_emulated.so -C libdoca -cgo \
            -tags libdoca_shared,netgo,osusergo ./shared
        make_package libdoca/packages/libdoca-emulation.yaml
        make_package libdoca/packages/libdoca-emulation-dev.yaml
    fi
    # Two packages, too.
    if is_wanted libzcclient; then
        case $PACKAGE_ARCH in
        amd64) PACKAGE_TRIPLE=x86_64-linux-gnu ;;
        arm64) PACKAGE_TRIPLE=aarch64-linux-gnu ;;
        esac
        export PACKAGE_TRIPLE
        ZC_RELAY_VERSION=$PACKAGE_VERSION libzcclient/scripts/build.sh "$PACKAGE_ARCH" \
            dist/stage/libzcclient /usr "lib/$PACKAGE_TRIPLE"
        sed 's|^libdir=.*|libdir=${prefix}/lib64|' \
            dist/stage/libzcclient/lib/pkgconfig/zcclient.pc >dist/stage/zcclient-rpm.pc
        write_notices libzcclient0 dist/stage/libzcclient/lib/libzcclient/libzcclient-core.so -cgo \
            -tags netgo,osusergo ./libzcclient/core
        make_package libzcclient/packages/libzcclient0.yaml
        make_package libzcclient/packages/libzcclient-dev.yaml
    fi
    is_wanted zc-relay-target-ceph || continue
    # The target with librbd links it, and can only be built for this machine.
    if [ "$PACKAGE_ARCH" != "$(go env GOHOSTARCH)" ] || [ ! -e /usr/include/rbd/librbd.h ]; then
        echo "packages: no zc-relay-target-ceph for $PACKAGE_ARCH: it needs librbd-dev and" \
            "librados-dev on a machine of that architecture" >&2
        continue
    fi
    scripts/build-ceph.sh dist/stage/zc-relay-target-ceph -ldflags "$ldflags"
    write_notices zc-relay-target-ceph dist/stage/zc-relay-target-ceph -cgo \
        -tags "$(scripts/build-ceph.sh --tags)" ./cmd/target
    deploy/packages/variant.sh zc-relay-target ceph >dist/stage/zc-relay-target-ceph.yaml
    make_package dist/stage/zc-relay-target-ceph.yaml
done
check_modes
rm -rf dist/stage dist/manual
