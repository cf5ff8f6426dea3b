#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs programs that are written for DOCA with the emulation of libdoca, beside which it lies:
# "zc-libdoca --help" explains.
set -eu

usage() {
    cat <<'END'
Run programs that are written for DOCA with the emulation of libdoca.

  zc-libdoca run --role dpu|host [OPTION...] -- PROGRAM [ARGUMENT...]
      Run a program as on a DPU or on its host: it finds the emulation and the device of that side.
  zc-libdoca env --role dpu|host [OPTION...]
      Print the same settings, and those to compile programs with, for the shell:
      eval "$(zc-libdoca env --role dpu)"
  zc-libdoca try [OPTION...] DIRECTORY
      Build the samples and applications in a checkout, and run those that are pairs:
      "zc-libdoca try --help" explains.

Options of run and env:
  --role dpu|host   the side of the program; may be left to the configuration file
  --directory DIR   where Comch servers and clients meet (default: one of this user)
  --release R       the release of DOCA that the library answers as: 2.9, 2.10, or 3.0 to 3.3
  --config FILE     a configuration file (YAML), for what the other options leave out
END
}

fail() {
    echo "zc-libdoca: $*" >&2
    exit 2
}

# absolute PATH: prints it with the current directory in front unless it has one
absolute() {
    case $1 in
    /*) printf '%s' "$1" ;;
    *) printf '%s/%s' "$(pwd -P)" "$1" ;;
    esac
}

newline='
'
# yaml TEXT: prints it as a string in YAML
yaml() { printf "'%s'" "$(printf '%s' "$1" | sed "s/'/''/g")"; }

# shell TEXT: prints it as a word for a shell
shell() { printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"; }

home=$(dirname "$(readlink -f "$0")")
[ $# -gt 0 ] || {
    usage >&2
    exit 2
}
command=$1
shift
case $command in
run | env) ;;
try)
    [ -x "$home/try-doca-samples" ] ||
        fail "found no headers for programs; install the package libdoca-emulation-dev"
    exec "$home/try-doca-samples" "$@"
    ;;
-h | --help | help)
    usage
    exit
    ;;
*) fail "unknown command \"$command\": use run, env, or try; --help explains" ;;
esac

role='' directory='' release='' config=''
while [ $# -gt 0 ]; do
    case $1 in
    --role | --directory | --release | --config)
        [ $# -gt 1 ] || fail "$1 needs a value"
        [ -n "$2" ] || fail "the value of $1 is empty"
        name=${1#--} value=$2
        shift 2
        ;;
    --role=* | --directory=* | --release=* | --config=*)
        name=${1%%=*} value=${1#*=}
        name=${name#--}
        [ -n "$value" ] || fail "the value of --$name is empty"
        shift
        ;;
    -h | --help)
        usage
        exit
        ;;
    --)
        shift
        [ "$command" = run ] || fail "env takes no program; use run"
        break
        ;;
    -*) fail "unknown option $1: --help lists all; a program comes after --" ;;
    *)
        [ "$command" = run ] || fail "env takes no argument: \"$1\""
        break
        ;;
    esac
    case $value in *"$newline"*) fail "--$name: the value has several lines" ;; esac
    case $name in
    role)
        case $value in
        dpu | host) role=$value ;;
        *) fail "role \"$value\" is neither dpu nor host" ;;
        esac
        ;;
    directory)
        [ ! -e "$value" ] || [ -d "$value" ] || fail "$value is not a directory"
        directory=$(absolute "$value")
        ;;
    release)
        case $value in
        2.9 | 2.10 | 3.[0-3]) release=$value ;;
        *) fail "unknown release \"$value\": use 2.9, 2.10, or 3.0 to 3.3" ;;
        esac
        ;;
    config)
        [ -f "$value" ] && [ -r "$value" ] || fail "cannot read the configuration file $value"
        config=$(absolute "$value")
        ;;
    esac
done
[ -n "$role$config" ] || fail "use --role dpu or --role host, or --config FILE"
[ "$command" = env ] || [ $# -gt 0 ] || fail "which program? zc-libdoca run --role dpu -- PROGRAM"
[ -e "$home/lib/libdoca_common.so.2" ] || fail "found no library in $home/lib"

settings=
# set_to KEY VALUE: adds a setting to $settings
set_to() { settings="$settings${settings:+, }$1: $2"; }
[ -z "$config" ] || set_to config "$(yaml "$config")"
[ -z "$role" ] || set_to role "$role"
[ -z "$release" ] || set_to release "'$release'"
[ -z "$directory" ] || set_to directory "$(yaml "$directory")"
ZC_DOCA_EMULATION="{$settings}"

# A list that has the directory in front already stays as it is.
prepend() { # DIRECTORY LIST
    case :$2: in
    ::) printf '%s' "$1" ;;
    :"$1":*) printf '%s' "$2" ;;
    *) printf '%s:%s' "$1" "$2" ;;
    esac
}
LD_LIBRARY_PATH=$(prepend "$home/lib" "${LD_LIBRARY_PATH-}")
if [ "$command" = env ]; then
    echo "export LD_LIBRARY_PATH=$(shell "$LD_LIBRARY_PATH")"
    # The settings for one role take the place of those for the other.
    others=$(printf '%s' "${PKG_CONFIG_PATH-}" | tr : '\n' |
        grep -vxF -e "$home/dpu/lib/pkgconfig" -e "$home/host/lib/pkgconfig" \
            -e "$home/lib/pkgconfig" | paste -sd : -)
    pkgconfig=$(prepend "$home${role:+/$role}/lib/pkgconfig" "$others")
    echo "export PKG_CONFIG_PATH=$(shell "$pkgconfig")"
    echo "export ZC_DOCA_EMULATION=$(shell "$ZC_DOCA_EMULATION")"
    exit
fi
export LD_LIBRARY_PATH ZC_DOCA_EMULATION
command -v -- "$1" >/dev/null 2>&1 || fail "found no program $1"
exec "$@"
