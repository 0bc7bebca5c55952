#!/usr/bin/env bash
# The kernels' GPU tests under compute-sanitizer: memcheck and racecheck. A line per tool and kernel; 0 where all pass and
# nothing is reported but of PyTorch's own kernels (its argmax has shared-memory hazards by racecheck's count).
#   sanitize.sh [FOLDER FOR LOGS]     SECONDS_EACH, TOOLS and KERNELS limit what runs
set -uo pipefail
here=$(cd "$(dirname "$0")/specforge_kernels" && pwd)
logs=${1:-$(mktemp -d)}
export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # every tensor its own allocation: a read past its end is seen
declare -A running=()
for tool in ${TOOLS:-memcheck racecheck}; do
    for kernel in ${KERNELS:-ttt_attention soft_target_loss rms_norm split_rotate}; do
        tests=$(ls "$here/$kernel"/test_kernel.py "$here/$kernel/test_$kernel.py" 2>/dev/null | head -1)
        timeout "${SECONDS_EACH:-3600}" compute-sanitizer --tool "$tool" --print-limit 100000 \
            python3 -m pytest -q -p no:cacheprovider --import-mode=importlib -m gpu "$tests" >"$logs/$tool-$kernel.log" 2>&1 &
        running[$tool-$kernel]=$!
    done
done
status=0
for one in "${!running[@]}"; do
    wait "${running[$one]}"
    code=$?
    ours=$(grep -E 'Race reported|Invalid|Uninitialized|leaked|Program hit|Barrier error|out of bounds|misaligned' "$logs/$one.log" | grep -vc 'at::native')
    [ $code = 0 ] && [ "$ours" = 0 ] || status=1
    echo "$one: exit $code; $ours reports of our kernels; $(grep -hE 'ERROR SUMMARY|RACECHECK SUMMARY' "$logs/$one.log" | tail -1); $(grep -hE '(passed|failed)' "$logs/$one.log" | tail -1)"
done
exit $status
