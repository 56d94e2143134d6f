# Shared by quickstart.sh and test.sh: packages, quiet steps with progress. Sourced by bash, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
logs=$root/build/logs
mkdir -p "$logs"
started=$SECONDS

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 2; }

# step NAME COMMAND...: runs quietly; shows name and time; on failure shows the end of the log.
step() {
    local name=$1 log begin=$SECONDS status=0
    shift
    log=$logs/$(printf '%s' "$name" | tr -c 'A-Za-z0-9' '-' | tr -s '-').log
    if [ -t 2 ]; then printf '%-58s ...' "$name" >&2; fi
    "$@" >"$log" 2>&1 || status=$?
    if [ -t 2 ]; then printf '\r' >&2; fi
    if [ "$status" -eq 0 ]; then
        printf '%-58s %4d s\n' "$name" $((SECONDS - begin)) >&2
    else
        printf '%-58s FAILED (exit %d) after %d s\n' "$name" "$status" $((SECONDS - begin)) >&2
        tail -n 40 "$log" >&2
        say "whole log: $log"
        return "$status"
    fi
}

# need_packages PACKAGE...: installs what is missing, as root or through sudo; says what it lacks.
need_packages() {
    local missing=() package sudo=""
    command -v dpkg-query >/dev/null || die "Debian or Ubuntu is needed to install packages; install these yourself: $*"
    for package in "$@"; do
        dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^.i' || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "not root and no sudo; ask an administrator for: apt-get install ${missing[*]}"
        sudo="sudo"
    fi
    step "install ${#missing[@]} packages (apt)" install_missing "$sudo" "${missing[@]}" ||
        die "could not install: ${missing[*]}"
}

install_missing() {
    local sudo=$1
    shift
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get -o DPkg::Lock::Timeout=120 update -qq &&
        $sudo apt-get -o DPkg::Lock::Timeout=120 install -y -qq --no-install-recommends "$@"
}

# have_package PACKAGE: true when installed or installable from the configured sources.
have_package() {
    apt-cache show "$1" >/dev/null 2>&1
}

build_packages=(gcc libc6-dev cmake ninja-build pkg-config libjansson-dev libpcre2-dev
    libutf8proc-dev libhwloc-dev libxxhash-dev libfyaml-dev libcmocka-dev)

# build PRESET: configures and builds with every core.
build() {
    cmake --preset "$1" && cmake --build --preset "$1" -j "$(nproc)"
}
