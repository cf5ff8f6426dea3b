#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds libzcclient, the C library, for one architecture (amd64 or arm64): DIRECTORY/lib has the
# library with its private part and the pkg-config file, DIRECTORY/include the header. Needs a C
# compiler for it.
#
# Usage: build.sh ARCHITECTURE DIRECTORY [PREFIX [LIBRARY-DIRECTORY]]
#
# PREFIX and LIBRARY-DIRECTORY are where the pkg-config file looks for the header and the library:
# DIRECTORY and lib by default. $ZC_RELAY_VERSION is the version; the default is what git says.
set -euo pipefail
architecture=$1 directory=$(realpath -m "$2")
prefix=${3:-$directory} library_directory=${4:-lib}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=${ZC_RELAY_VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo devel)}
here=libzcclient

. scripts/cross-compiler.sh
choose_compiler "$architecture"
harden

rm -rf "$directory"
mkdir -p "$directory"/{include,lib/libzcclient,lib/pkgconfig}

# The private part. A Go runtime cannot be unloaded. Go's own build ID would depend on the path in
# the flags.
core=$directory/lib/libzcclient/libzcclient-core.so
external="-Wl,--version-script=$PWD/$here/core/versions.map -Wl,-z,nodelete -Wl,--build-id=sha1"
CGO_ENABLED=1 GOOS=linux GOARCH=$architecture CC=$compiler \
    go build -tags netgo,osusergo -trimpath -buildmode=c-shared \
    -ldflags "-s -w -buildid= $(scripts/ldflags.sh "$version") -extldflags '$external'" \
    -o "$core" ./$here/core
rm -f "${core%.so}.h"

# The library: C alone, so that nothing starts when it is loaded.
library=$directory/lib/libzcclient.so.0
read -r -a flags <<<"$CGO_CFLAGS $CGO_LDFLAGS"
"$compiler" -std=c11 -Wall -Wextra -Werror -fPIC -shared -pthread "${flags[@]}" \
    -ffile-prefix-map="$PWD"=. -DZC_VERSION="\"$version\"" \
    -Wl,-soname,libzcclient.so.0 -Wl,--version-script=$here/versions.map -Wl,-z,nodelete \
    -Wl,-z,defs -Wl,--build-id=sha1 -s \
    -o "$library" $here/error.c $here/load.c $here/volume.c $here/queue.c
ln -s libzcclient.so.0 "$directory/lib/libzcclient.so"

for file in "$library" "$core"; do
    newest=$(newest_glibc "$file")
    if ! is_allowed "$newest"; then
        echo "libzcclient/scripts/build.sh: $file needs glibc $newest, not at most" \
            "$newest_allowed" >&2
        exit 1
    fi
    scripts/check-hardening.sh "$file"
done

cp $here/include/zcclient.h "$directory/include/"
cat >"$directory/lib/pkgconfig/zcclient.pc" <<END
prefix=$prefix
libdir=\${prefix}/$library_directory
includedir=\${prefix}/include

Name: zcclient
Description: client of zc-relay
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lzcclient
END
