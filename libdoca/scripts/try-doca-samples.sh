#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the samples and applications in a checkout against the emulation of libdoca, and runs those
# that are pairs. "zc-libdoca try", beside which this is installed, is how users run it.
set -euo pipefail

usage() {
    cat <<'END'
Build samples and applications for DOCA with the emulation of libdoca, run those that are pairs, and
print a table.

  zc-libdoca try [OPTION...] DIRECTORY [NAME...]

DIRECTORY is a checkout, or a directory in it. Each directory with a meson.build and a main function
is a program; with names, only programs whose directory matches one of them (a shell pattern). Each
is built twice, for the DPU and for the host: with meson where that is installed and the meson.build
is a project or part of one, and otherwise by compiling its sources.

Programs are a pair if their names differ in one of these words: host and dpu, client and server,
requester and responder, send and receive, sender and receiver. They run in an empty directory of
their own, and get a line on the standard input when all of the pair wait for one.

  --arguments FILE    what programs get on the command line: lines NAME ARGUMENTS, or
                      NAME@dpu ARGUMENTS and NAME@host ARGUMENTS. A program with lines for both
                      sides is a pair with itself
  --release R         the release of DOCA that the library answers as
  --timeout SECONDS   how long a pair may run (default 30)
  --keep DIRECTORY    leave builds, runs, and logs there
  --no-meson          compile the sources of all programs

It exits with 0 if every program was built for a role at least and every pair ran, with 1 otherwise.
END
}

fail() {
    echo "zc-libdoca try: $*" >&2
    exit 2
}

home=$(dirname "$(readlink -f "$0")")
arguments='' release=() timeout=30 keep='' meson=yes
while [ $# -gt 0 ]; do
    case $1 in
    --arguments | --release | --timeout | --keep)
        [ $# -gt 1 ] && [ -n "$2" ] || fail "$1 needs a value"
        case $1 in
        --arguments)
            [ -f "$2" ] && [ -r "$2" ] || fail "cannot read $2"
            arguments=$2
            ;;
        --release) release=(--release "$2") ;;
        --timeout)
            [[ $2 =~ ^[1-9][0-9]{0,4}$ ]] || fail "timeout \"$2\" is no number of seconds"
            timeout=$2
            ;;
        --keep)
            [ ! -e "$2" ] || [ -z "$(ls -A -- "$2")" ] || fail "$2 exists and is not empty"
            keep=$2
            ;;
        esac
        shift 2
        ;;
    --no-meson)
        meson=''
        shift
        ;;
    -h | --help)
        usage
        exit
        ;;
    -*) fail "unknown option $1: --help lists all" ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || fail "which directory? --help explains"
[ -d "$1" ] || fail "$1 is not a directory"
directory=$(cd -- "$1" && pwd -P)
shift
names=("$@")
# zc-libdoca checks the release.
"$home/zc-libdoca" env --role dpu "${release[@]}" >/dev/null || exit
for tool in gcc pkg-config; do
    command -v $tool >/dev/null || fail "found no $tool"
done
command -v meson >/dev/null && command -v ninja >/dev/null || meson=''

if [ -n "$keep" ]; then
    mkdir -p -- "$keep"
    work=$(cd -- "$keep" && pwd -P)
else
    work=$(mktemp -d "${TMPDIR:-/tmp}/zc-libdoca-try.XXXXXX")
fi
children=()
clean_up() {
    local child
    for child in "${children[@]}"; do
        kill -KILL "$child" 2>/dev/null || true
    done
    [ -n "$keep" ] || rm -rf -- "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# The whole checkout is copied, because programs use sources beside their directories, and because
# build files name the place of an installed SDK, which is this copy then.
root=$directory
for ((above = 0; above < 6; above++)); do
    [ ! -d "$root/samples" ] && [ ! -d "$root/applications" ] || break
    root=$(dirname "$root")
done
[ -d "$root/samples" ] || [ -d "$root/applications" ] || root=$directory
[ "$root" != / ] || root=$directory
[[ $work/ != "$root"/* ]] || fail "the directory to keep lies in $root"
tree=$work/checkout
mkdir -p "$tree"
tar -C "$root" --exclude=./.git -cf - . | tar -C "$tree" -xf -
top=$tree${directory#"$root"}
for place in "$tree" "$tree/applications" "$tree/samples"; do
    [ ! -d "$place" ] || [ -e "$place/VERSION" ] || echo 3.3.0 >"$place/VERSION"
done
find "$tree" -name meson.build -type f -exec sed -i "s|/opt/mellanox/doca/|$tree/|g" {} +

# sources_of DIRECTORY: the C and C++ sources there and below, except those of programs below
sources_of() {
    find "$1" -mindepth 1 \( -type d -exec test -e {}/meson.build \; -prune \) -o \
        -type f \( -name '*.c' -o -name '*.cpp' -o -name '*.cc' \) -print | sort
}

has_main() {
    sources_of "$1" | tr '\n' '\0' |
        xargs -0r grep -hE '^[[:space:]]*((int|auto)[[:space:]]+)?main[[:space:]]*\(' >/dev/null
}

is_wanted() {
    local name
    [ ${#names[@]} -gt 0 ] || return 0
    for name in "${names[@]}"; do
        # shellcheck disable=SC2053
        [[ $1 != $name && $(basename "$1") != $name ]] || return 0
    done
    return 1
}

# options_of PROJECT: the options that it has, one a line
options_of() {
    cat "$1"/meson_options.txt "$1"/meson.options 2>/dev/null |
        sed -n "s/^option('\([^']*\)'.*/\1/p" || true
}

# first_error LOG: the line that says what went wrong, without what a log has in front, and where the
# copy of the checkout lies
first_error() {
    local line tools='error:|ERROR:|undefined reference|cannot find|not found|misuse:'
    line=$(grep -m1 -aE "$tools|\]\[(ERR|ERROR|CRT|CRIT|CRITICAL)\]" "$1" ||
        grep -m1 -aiE 'error|fail' "$1" || grep -av '^$' "$1" | tail -n 1) || true
    tr -d '\r' <<<"$line" |
        sed -E 's/^[[:space:]]+//; s/^(\[[^]]*\])+[[:space:]]*//; s|[^][:space:]["(]*/checkout/||g' |
        cut -c 1-110
}

# What programs are compiled with: the modules of the emulation, and what they may need besides.
declare -A search=() cflags=() libs=()
for role in dpu host; do
    search[$role]=$(eval "$("$home/zc-libdoca" env --role $role)" && printf '%s' "$PKG_CONFIG_PATH")
    modules=()
    for module in libbsd json-c; do
        ! pkg-config --exists $module || modules+=($module)
    done
    for file in "$home"/lib/pkgconfig/*.pc; do
        modules+=("$(basename "$file" .pc)")
    done
    cflags[$role]=$(PKG_CONFIG_PATH=${search[$role]} pkg-config --cflags "${modules[@]}")
    libs[$role]=$(PKG_CONFIG_PATH=${search[$role]} pkg-config --libs "${modules[@]}")
done

# build_meson DIRECTORY ROLE OUTPUT: build the project, or the part of a project, that is there
build_meson() {
    local project=$1 options=() name
    name=$(basename "$1")
    if ! grep -qE '^[[:space:]]*project[[:space:]]*\(' "$1/meson.build"; then
        while :; do
            [ "$project" != "$tree" ] || return 2
            project=$(dirname "$project")
            [ -e "$project/meson.build" ] || continue
            ! grep -qE '^[[:space:]]*project[[:space:]]*\(' "$project/meson.build" || break
        done
        options_of "$project" | grep -xF "enable_$name" >/dev/null || return 2
        options=("-Denable_$name=true")
        ! options_of "$project" | grep -xF enable_all_applications >/dev/null ||
            options+=(-Denable_all_applications=false)
    fi
    PKG_CONFIG_PATH=${search[$2]} meson setup "$3" "$project" "${options[@]}" && ninja -C "$3"
}

# compile ROLE SOURCE: compile a source, once for a role. Sets $object, and leaves the messages of the
# compiler beside it
declare -A compiled=()
compile() {
    local role=$1 source=$2 compiler=(gcc) flags=() place
    object=$work/objects/$1/${2#"$tree/"}.o
    if [ -z "${compiled[$object]:-}" ]; then
        [[ $source == *.c ]] || compiler=(g++ -std=c++17)
        place=$source
        while [ "$place" != "$tree" ]; do
            place=$(dirname "$place")
            flags+=(-I "$place")
        done
        for place in "$tree/applications/common" "$tree/applications/common/src" "$tree/samples"; do
            [ ! -d "$place" ] || flags+=(-I "$place")
        done
        mkdir -p "$(dirname "$object")"
        compiled[$object]=no
        # shellcheck disable=SC2086
        ! "${compiler[@]}" -g -w -pthread -D_GNU_SOURCE -DDOCA_ALLOW_EXPERIMENTAL_API "${flags[@]}" \
            ${cflags[$role]} -c -o "$object" "$source" >"$object.log" 2>&1 || compiled[$object]=yes
    fi
    [ "${compiled[$object]}" = yes ]
}

has_main_symbol() { nm --defined-only "$1" | grep ' T main$' >/dev/null; }

# build_sources DIRECTORY ROLE OUTPUT: compile the sources there, and link each that has a main
# function with the others, and with what it needs of the sources in the directories above
build_sources() {
    local directory=$1 role=$2 output=$3 linker=gcc mains=() others=() above source object module name
    # What the build file asks for is missing, whatever the sources say.
    while read -r module; do
        PKG_CONFIG_PATH=${search[$role]} pkg-config --exists "$module" ||
            { echo "error: found no pkg-config module $module" && return 1; }
    done < <(sed -n "s/^[^#]*dependency('\(doca-[a-z0-9-]*\)'.*/\1/p" "$directory/meson.build")
    while read -r source; do
        [[ $source == *.c ]] || linker=g++
        compile "$role" "$source" || { cat "$object.log" && return 1; }
        if has_main_symbol "$object"; then mains+=("$object"); else others+=("$object"); fi
    done < <(sources_of "$directory")
    local places=("$tree/applications/common" "$tree/applications/common/src" "$tree/samples")
    above=$directory
    while [ "$above" != "$tree" ]; do
        above=$(dirname "$above")
        places+=("$above")
    done
    while read -r source; do
        # What does not compile may not be needed.
        compile "$role" "$source" && ! has_main_symbol "$object" || continue
        [[ $source == *.c ]] || linker=g++
        others+=("$object")
    done < <(find "${places[@]}" -maxdepth 1 -type f \
        \( -name '*.c' -o -name '*.cpp' -o -name '*.cc' \) 2>/dev/null | sort -u)
    [ ${#mains[@]} -gt 0 ] || { echo "error: no source has a main function" && return 1; }
    mkdir -p "$output"
    rm -f "$output/others.a"
    # The linker takes from an archive what is needed.
    ar rc "$output/others.a" "${others[@]}"
    for object in "${mains[@]}"; do
        name=$(basename "$object")
        name=${name%%.*}
        # shellcheck disable=SC2086
        $linker -pthread -o "$output/doca_${name%_main}" "$object" "$output/others.a" \
            ${libs[$role]} -lm || return 1
    done
}

# Programs by the directory, relative to the checkout, and, if there are several in it, their names.
programs=()
declare -A executable=() is_built=() error=()
failed=no
step() { [ ! -t 2 ] || printf '\r\033[K%s' "$*" >&2; }

build() { # RELATIVE DIRECTORY
    local name=$1 role output log status found file id
    local -A seen=()
    for role in dpu host; do
        step "building $name for the $role"
        output=$work/build/$role/$name
        log=$work/build/$role/$name.log
        mkdir -p "$(dirname "$log")"
        status=2
        if [ -n "$meson" ]; then
            build_meson "$top/$name" "$role" "$output" >"$log" 2>&1 && status=0 || status=$?
        fi
        if [ $status = 2 ]; then
            build_sources "$top/$name" "$role" "$output" >"$log" 2>&1 && status=0 || status=$?
        fi
        if [ $status != 0 ]; then
            [ -n "${error[$name]:-}" ] || error[$name]=$(first_error "$log")
            continue
        fi
        mapfile -t found < <(find "$output" -type f -perm -u+x ! -name '*.so*' ! -path '*/meson-*' \
            -exec sh -c '[ "$(head -c 4 "$1" | tail -c 3)" = ELF ]' sh {} \; -print | sort)
        for file in "${found[@]}"; do
            id=$name
            [ ${#found[@]} = 1 ] || id=$name:$(basename "$file")
            executable[$id@$role]=$file
            is_built[$id]="${is_built[$id]:-}${is_built[$id]:+ }$role"
            seen[$id]=yes
        done
    done
    if [ ${#seen[@]} = 0 ]; then
        programs+=("$name")
        failed=yes
        return
    fi
    while read -r id; do
        programs+=("$id")
        error[$id]=${error[$name]:-}
    done < <(printf '%s\n' "${!seen[@]}" | sort)
}

while read -r file; do
    name=$(dirname "$file")
    if [ "$name" = "$top" ]; then name=.; else name=${name#"$top/"}; fi
    has_main "$top/$name" && is_wanted "$name" || continue
    build "$name"
done < <(find "$top" -name meson.build -type f | sort)
[ ${#programs[@]} -gt 0 ] || fail "found no program in $directory: a directory with a meson.build" \
    "and a source with a main function"

# find_arguments ID ROLE: set $found to what the arguments file has for a program in a role, or fail;
# without a role, to what it has for either. Programs are named by the end of their path.
find_arguments() {
    local key rest id=$1
    [ "$id" != . ] || id=$(basename "$directory")
    found=''
    [ -n "$arguments" ] || return 1
    while read -r key rest; do
        [[ $key == *@* ]] || key=$key@
        [ "${key##*@}" = "$2" ] || continue
        key=${key%@*}
        [[ /$id == */"$key" || $id == *:"$key" ]] || continue
        found=$rest
        return 0
    done < <(grep -vE '^[[:space:]]*(#|$)' "$arguments")
    return 1
}

# waits_for_input PID: succeeds if a thread of the process reads the standard input
waits_for_input() {
    local thread call
    for thread in "/proc/$1/task"/*; do
        { read -r call <"$thread/syscall"; } 2>/dev/null || continue
        case $call in
        "0 0x0 "* | "63 0x0 "*) return 0 ;; # read, on amd64 and arm64
        esac
    done
    return 1
}
is_alive() { kill -0 "$1" 2>/dev/null; }

# start_half SIDE: start one half of the pair that run_pair runs
start_half() {
    local words found
    find_arguments "${id[$1]}" "${role[$1]}" || find_arguments "${id[$1]}" "" || true
    read -r -a words <<<"$found"
    # Both ends stay open here, so that the program sees no end of its input.
    mkfifo "$where/input.$1"
    exec {input[$1]}<>"$where/input.$1"
    (
        cd "$where/files"
        export ZC_DOCA_DEBUG=report
        exec "$home/zc-libdoca" run --role "${role[$1]}" --directory "$where/comch" "${release[@]}" \
            -- "${executable[${id[$1]}@${role[$1]}]}" "${words[@]}" \
            <"$where/input.$1" >"$where/log.$1" 2>&1
    ) &
    pid[$1]=$!
    children+=("$!")
}

# run_pair DIRECTORY FIRST ROLE SECOND ROLE: run two programs, the second once the first is ready,
# until both have ended. Sets $outcome, and, if one fails, $outcome_log.
run_pair() {
    local where=$1 id=("$2" "$4") role=("$3" "$5") pid=() input=() code=('' '') side tries
    local begun=$SECONDS failed_at='' alive waiting
    mkdir -p "$where/files"
    start_half 0
    # Ready is what waits for input, has ended, or has run for a second.
    for ((tries = 0; tries < 10; tries++)); do
        sleep 0.1
        is_alive "${pid[0]}" && ! waits_for_input "${pid[0]}" || break
    done
    start_half 1
    outcome=ok
    while :; do
        alive=0 waiting=0
        for side in 0 1; do
            [ -z "${code[$side]}" ] || continue
            if is_alive "${pid[$side]}"; then
                alive=$((alive + 1))
                ! waits_for_input "${pid[$side]}" || waiting=$((waiting + 1))
                continue
            fi
            wait "${pid[$side]}" && code[$side]=0 || code[$side]=$?
            if [ "${code[$side]}" != 0 ] && [ $outcome = ok ]; then
                outcome=failed outcome_log=$where/log.$side failed_at=$SECONDS
                [ -s "$outcome_log" ] || echo "error: exit status ${code[$side]}" >"$outcome_log"
            fi
        done
        [ $alive -gt 0 ] || break
        # The partner of one that has failed may wait in vain.
        [ -z "$failed_at" ] || [ $((SECONDS - failed_at)) -lt 2 ] || break
        if [ $((SECONDS - begun)) -ge "$timeout" ]; then
            [ $outcome = failed ] || outcome="no end in $timeout s"
            break
        fi
        if [ $alive = $waiting ]; then
            for side in 0 1; do
                [ -n "${code[$side]}" ] || echo >&"${input[$side]}"
            done
        fi
        sleep 0.1
    done
    for side in 0 1; do
        if [ -z "${code[$side]}" ]; then
            kill -KILL "${pid[$side]}" 2>/dev/null || true
            wait "${pid[$side]}" 2>/dev/null || true
        fi
        exec {input[$side]}>&-
    done
    children=()
}

declare -A ran=() is_half=()
# try_pair FIRST ROLE SECOND ROLE: run two programs, in the other order if that fails: only the
# programs know who has to be first
try_pair() {
    local where=$work/run/${1//[\/:]/_} outcome outcome_log='' former former_log note='' id
    step "running $1 and $3"
    run_pair "$where" "$@"
    if [ "$outcome" != ok ]; then
        former=$outcome former_log=$outcome_log outcome_log=''
        where=$where.reversed
        run_pair "$where" "$3" "$4" "$1" "$2"
        [ "$outcome" = ok ] || outcome=$former outcome_log=$former_log
    fi
    if [ "$outcome" = ok ]; then
        note=$(grep -m1 -ah 'misuse:' "$where"/log.? | cut -c 1-110) || true
    else
        failed=yes
        [ -z "$outcome_log" ] || note=$(first_error "$outcome_log")
    fi
    for id in "$1" "$3"; do
        ran[$id]=$outcome error[$id]=${note:-${error[$id]:-}} is_half[$id]=yes
    done
}

# has HALF...: succeeds if programs were built for roles; each is ID@ROLE
has() {
    local half
    for half in "$@"; do
        [ -n "${executable[$half]:-}" ] || return 1
    done
}

# Which words make a pair, in the order of their start, with their roles.
pairs=(
    "host host dpu dpu" "server dpu client host" "responder dpu requester host"
    "receive dpu send host" "receiver dpu sender host"
)

for id in "${programs[@]}"; do
    [ -z "${is_half[$id]:-}" ] || continue
    if find_arguments "$id" dpu && find_arguments "$id" host && has "$id@dpu" "$id@host"; then
        try_pair "$id" dpu "$id" host
        continue
    fi
    name=$(basename "$id")
    for pair in "${pairs[@]}"; do
        read -r first first_role second second_role <<<"$pair"
        # Words are what _ separates. A pair is found from its first half.
        partner=$(sed -E "s/(^|_)$first(_|\$)/\1$second\2/" <<<"$name")
        [ "$partner" != "$name" ] || continue
        [[ $id != */* ]] || partner=$(dirname "$id")/$partner
        if has "$id@$first_role" "$partner@$second_role"; then
            try_pair "$id" "$first_role" "$partner" "$second_role"
            break
        fi
    done
done

step ''
{
    printf 'program\tbuilt\tran\tfirst error\n'
    for id in "${programs[@]}"; do
        printf '%s\t%s\t%s\t%s\n' "$id" "${is_built[$id]:-no}" "${ran[$id]:--}" "${error[$id]:-}"
    done
} | awk -F '\t' '
    {
        for (i = 1; i <= 4; i++) {
            cell[NR, i] = $i
            if (length($i) > width[i]) width[i] = length($i)
        }
    }
    END {
        for (r = 1; r <= NR; r++) {
            line = sprintf("%-*s  %-*s  %-*s  %s", width[1], cell[r, 1], width[2], cell[r, 2],
                width[3], cell[r, 3], cell[r, 4])
            sub(/ +$/, "", line)
            print line
        }
    }'
[ -z "$keep" ] || echo "logs are in $work"
[ $failed = no ]
