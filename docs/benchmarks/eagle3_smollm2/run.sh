#!/usr/bin/env bash
# EAGLE3 for SmolLM2-135M-Instruct on one GPU: train on all chats, then measure acceptance at several steps.
#   run.sh TRAIN.jsonl.gz DEV.jsonl.gz OUT [--set PATH=VALUE ...]
# STEPS names the checkpoints that are measured. The target must be there:
#   specforge fetch HuggingFaceTB/SmolLM2-135M-Instruct
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
train=$(realpath "$1") dev=$(realpath "$2") out=$3
shift 3
specforge=${SPECFORGE:-specforge}
mkdir -p "$out"
$specforge run "$here/../../../recipes/smollm2_eagle3.py" \
    --set name=smollm2-eagle3-h200 --set output_dir="$out/run" --set topology.device=H200 \
    --set train.features.source.path="$train" --set train.features.source.max_rows=None \
    --set train.draft.vocab_size=16384 --set train.batch_size=8 --set train.learning_rate=1.5e-3 \
    --set train.log_every=25 --set 'outputs[0].every=500' --set 'outputs[0].keep=100' "$@"
cp "$out/run/metrics.jsonl" "$out/run/plan.json" "$out/"
for step in ${STEPS:-untrained 000500 001500 003000 latest}; do
    checkpoint=$out/run/checkpoints/step-$step flag=
    [ "$step" = untrained ] && checkpoint=$out/run flag=--untrained
    [ "$step" = latest ] && checkpoint=$out/run
    [ -e "$checkpoint" ] || continue
    $specforge eval "$checkpoint" --prompts "$dev" --limit 200 --max-new-tokens 128 --draft-tokens 5 \
        --batch-size 50 --json $flag >"$out/eval-$step.json" || echo "eval $step: exit $?"
done
