#!/usr/bin/env bash
# Builds the emulation of libdoca for one architecture (amd64 or arm64) as a shared library, under
# the names of all DOCA libraries, with its headers, pkg-config files, and a command, run, that runs
# a program with it. Needs a C compiler for it.
#
# Usage: build-libdoca.sh ARCHITECTURE DIRECTORY [PREFIX]
#
# PREFIX is where the pkg-config files look for the library and the headers: DIRECTORY by default.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

architecture=$1 directory=$2
prefix=${3:-$(realpath -m "$directory")}
libraries=(common comch rdma dma argp compress erasure_coding)
version=3.3.0 # what pkg-config answers

. scripts/cross-compiler.sh
choose_compiler "$architecture"

rm -rf "$directory"
mkdir -p "$directory/lib/pkgconfig" "$directory/include"
# It has no name of its own (SONAME), so a program needs it under the names that it was linked with.
# A Go runtime cannot be unloaded.
library=$directory/lib/libdoca_emulated.so
CGO_ENABLED=1 GOOS=linux GOARCH=$architecture CC=$compiler \
    go build -tags libdoca_shared,netgo,osusergo -trimpath -buildmode=c-shared \
    -ldflags "-s -w -extldflags '-Wl,--version-script=$PWD/libdoca/shared/versions.map -Wl,-z,nodelete'" \
    -o "$library" ./libdoca/shared
rm -f "${library%.so}.h"
newest=$(newest_glibc "$library")
if ! is_allowed "$newest"; then
    echo "build-libdoca: the library needs glibc $newest, not at most $newest_allowed" >&2
    exit 1
fi

cp libdoca/include/*.h "$directory/include/"
for name in "${libraries[@]}"; do
    for suffix in so so.2 so.3; do
        ln -s libdoca_emulated.so "$directory/lib/libdoca_$name.$suffix"
    done
    # -l:NAME keeps .so.2 in the program, so that it also runs where only the packages for running
    # programs are installed.
    cat >"$directory/lib/pkgconfig/doca-${name//_/-}.pc" <<END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: doca-${name//_/-}
Description: libdoca_$name, emulated
Version: $version
$([ "$name" = common ] || echo "Requires: doca-common")
Cflags: -I\${includedir}
Libs: -L\${libdir} -l:libdoca_$name.so.2
END
done

# A command that runs a program with the library.
cat >"$directory/run" <<END
#!/bin/sh
# Runs a program that is written for DOCA with the emulation of libdoca.
set -e
if [ \$# -eq 0 ]; then
    echo "usage: \$0 PROGRAM [ARGUMENT...]" >&2
    exit 2
fi
export LD_LIBRARY_PATH="$prefix/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
exec "\$@"
END
chmod +x "$directory/run"
