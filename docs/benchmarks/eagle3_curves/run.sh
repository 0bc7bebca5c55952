#!/usr/bin/env bash
# SmolLM2-135M-Instruct's draft, trained with the Triton kernels and with PyTorch on one GPU, the same seeds and chats.
#   run.sh TRAIN.jsonl.gz OUT     SEEDS, KERNELS, DEVICE, STEPS and LOG_EVERY for a smaller trial
# The target must be there: specforge fetch HuggingFaceTB/SmolLM2-135M-Instruct
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
train=$(realpath "$1") out=$2
mkdir -p "$out"
specforge=${SPECFORGE:-specforge}
for seed in ${SEEDS:-42 1 2}; do
    running=()
    for kernels in ${KERNELS:-triton torch}; do
        $specforge run "$here/../../../recipes/smollm2_eagle3.py" \
            --set name=smollm2-eagle3-curves --set output_dir="$out/$kernels-$seed" --set topology.device="${DEVICE:-H200}" \
            --set seed="$seed" --set train.kernels="$kernels" --set train.max_steps="${STEPS:-300}" \
            --set train.features.source.path="$train" --set train.features.source.max_rows=None \
            --set train.draft.vocab_size=16384 --set train.batch_size=8 --set train.learning_rate=1.5e-3 \
            --set train.log_every="${LOG_EVERY:-10}" --set 'outputs[0].every=1000' >"$out/$kernels-$seed.log" 2>&1 &
        running+=($!)
    done
    for one in "${running[@]}"; do wait "$one"; done
done
[ "${KERNELS:-both}" != both ] || python3 "$here/compare.py" "$out"
