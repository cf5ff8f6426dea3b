#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the emulation of libdoca for one architecture (amd64 or arm64) as a shared library, under
# the names of all DOCA libraries, with its headers, pkg-config files, and zc-libdoca, which runs
# programs with it. Needs a C compiler for it.
#
# include and lib/pkgconfig are for programs of either side of a DPU. dpu and host have both for one
# side: there, doca_build_config.h says which one. Programs are linked with lib/link, which has a
# library with the functions of each of NVIDIA's, and run with lib.
#
# Usage: build.sh ARCHITECTURE DIRECTORY [PREFIX]
#
# PREFIX is where the pkg-config files look for the library and the headers: DIRECTORY by default.
set -euo pipefail
architecture=$1 directory=$(realpath -m "$2")
prefix=${3:-$directory}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# functions_of LIBRARY prints the names of its functions.
functions_of() { sed -n "s/^EMU_FUNCTION($1, \([a-z0-9_]*\),.*/\1/p" functions.h; }
mapfile -t libraries < <(
    sed -n 's/^EMU_FUNCTION(\([a-z0-9_]*\),.*/\1/p' functions.h | sort -u
)
[ ${#libraries[@]} -ge 7 ]
version=3.3.0 # what pkg-config answers

. ../scripts/cross-compiler.sh
choose_compiler "$architecture"
harden

rm -rf "$directory"
mkdir -p "$directory/lib/link" "$directory/include"
# It has no name of its own (SONAME), so a program needs it under the names that it was linked with.
# A Go runtime cannot be unloaded. Go's own build ID would depend on the path in the flags.
external="-Wl,--version-script=$PWD/shared/versions.map -Wl,-z,nodelete -Wl,--build-id=sha1"
library=$directory/lib/libdoca_emulated.so
CGO_ENABLED=1 GOOS=linux GOARCH=$architecture CC=$compiler \
    go build -tags libdoca_shared,netgo,osusergo -trimpath -buildmode=c-shared \
    -ldflags "-s -w -buildid= -extldflags '$external'" \
    -o "$library" ./shared
rm -f "${library%.so}.h"
newest=$(newest_glibc "$library")
if ! is_allowed "$newest"; then
    echo "libdoca/scripts/build.sh: the library needs glibc $newest, not at most $newest_allowed" >&2
    exit 1
fi
../scripts/check-hardening.sh "$library"

cp include/*.h "$directory/include/"
for name in "${libraries[@]}"; do
    for suffix in so so.2 so.3; do
        ln -s libdoca_emulated.so "$directory/lib/libdoca_$name.$suffix"
    done
    # What is linked with this one needs the library under NVIDIA's name, however the linker was
    # told of it, and lacks what no library that it names has. Its functions are never called.
    functions_of "$name" | sed 's/.*/void &(void) { __builtin_trap(); }/' |
        "$compiler" -x c -w -shared -nostdlib -fPIC -O1 -s -Wl,-z,relro,-z,now \
            -Wl,-soname,"libdoca_$name.so.2" \
            -Wl,--version-script=shared/versions.map \
            -o "$directory/lib/link/libdoca_$name.so" -
done

# make_pkgconfig ROLE: make the pkg-config files that find the headers of a role, or, if it is "",
# those without a role
make_pkgconfig() {
    local name place=${1:+/$1}
    mkdir -p "$directory$place/lib/pkgconfig"
    for name in "${libraries[@]}"; do
        cat >"$directory$place/lib/pkgconfig/doca-${name//_/-}.pc" <<END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}$place/include

Name: doca-${name//_/-}
Description: libdoca_$name, emulated${1:+, for programs of the role $1}
Version: $version
$([ "$name" = common ] || echo "Requires: doca-common")
Cflags: -I\${includedir}
Libs: -L\${libdir}/link -ldoca_$name
END
    done
}
make_pkgconfig ""
for role in dpu host; do
    make_pkgconfig "$role"
    mkdir "$directory/$role/include"
    for header in "$directory"/include/*.h; do
        ln -s "../../include/$(basename "$header")" "$directory/$role/include/"
    done
    config=$directory/$role/include/doca_build_config.h
    rm "$config"
    sed "s/^#define DOCA_BUILD_CONFIG_H_\$/&\n\n#define DOCA_ARCH_${role^^} 1/" \
        include/doca_build_config.h >"$config"
    grep -q "DOCA_ARCH_${role^^} 1" "$config"
done

install -m 755 scripts/zc-libdoca.sh "$directory/zc-libdoca"
install -m 755 scripts/try-doca-samples.sh "$directory/try-doca-samples"
