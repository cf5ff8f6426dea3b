#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles zc.c, an engine for fio. It has the structures of one version of fio, so it needs the
# source of exactly that which runs it; Debian has no package of fio's headers. Of a released source
# it needs nothing but the headers, and no configure.
#
# Usage: build.sh FIO-SOURCE ENGINE      fio's source is in a directory; pkg-config finds zcclient
#        build.sh --get-source DIRECTORY  download the source of Debian's fio that is installed
set -euo pipefail

# get_source DIRECTORY: download into it the source of the installed package, which apt verifies,
# from where the system gets its packages, without a change of its list of sources
get_source() {
    local version work
    version=$(dpkg-query -W -f='${source:Version}' fio)
    work=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    mkdir -p "$work/lists/partial"
    apt-get indextargets --format 'deb-src $(REPO_URI) $(CODENAME) $(COMPONENT)' \
        'Created-By: Packages' | sort -u >"$work/sources"
    local apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/sources" -o Dir::Etc::SourceParts=-
        -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    (cd "$work" && "${apt[@]}" source --download-only "fio=$version")
    mkdir -p "$work/source" "$(dirname "$1")"
    tar -xf "$work"/fio_*.orig.tar.[gx]z -C "$work/source" --strip-components=1
    mv -T "$work/source" "$1" # whole, or not at all
}

if [ "${1:-}" = --get-source ] && [ $# -eq 2 ]; then
    get_source "$2"
    exit
fi
[ $# -eq 2 ] && [ "${1:0:1}" != - ] || {
    echo "usage: build.sh FIO-SOURCE ENGINE, or build.sh --get-source DIRECTORY" >&2
    exit 2
}
source=$1 engine=$2
[ -e "$source/ioengines.h" ] || {
    echo "build.sh: $source is no source of fio: it lacks ioengines.h" >&2
    exit 1
}
of_source=$(sed -n 's/^DEF_VER=//p' "$source/FIO-VERSION-GEN")
installed=$(fio --version)
[ "$of_source" = "$installed" ] || {
    echo "build.sh: the source is that of $of_source, and $installed is installed: an engine works" \
        "only in the version that it is compiled for" >&2
    exit 1
}
read -r -a library <<<"$(pkg-config --cflags --libs zcclient)"
# What fio's headers have to know of libc.
known=(-DCONFIG_STRSEP -DCONFIG_STRLCAT -DCONFIG_STRCASESTR -DCONFIG_HAVE_GETTID -DCONFIG_PWRITEV2
    -DCONFIG_SYNC_FILE_RANGE)
"${CC:-gcc}" -std=gnu11 -O2 -g -Wall -Wextra -D_GNU_SOURCE "${known[@]}" -isystem "$source" \
    -fPIC -shared -o "$engine" "$(dirname "${BASH_SOURCE[0]}")/zc.c" "${library[@]}" \
    "-Wl,-rpath,$(pkg-config --variable=libdir zcclient)"
