# Shared by the experiments: where kvlab is, and where rows and figures go. Sourced, not run.
# KVLAB=path/to/kvlab OUT=folder may be set; each script says what it needs.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
KVLAB=${KVLAB:-$root/build/release/kvlab}
name=$(basename "$0" .sh)
OUT=${OUT:-$root/results/$name}
[ -x "$KVLAB" ] || { echo "$KVLAB: build it (cmake --preset release && ninja -C build/release kvlab), or set KVLAB" >&2; exit 2; }
mkdir -p "$OUT"
cd "$OUT"
