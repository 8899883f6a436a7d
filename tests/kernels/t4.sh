#!/bin/bash
# All that the owner of a Tesla T4 should run once: t4.sh FOLDER MODEL…, from the root of a clone (make t4).
# A MODEL is a GGUF file or a repository of the hub. Every part has files of its own in FOLDER; one that fails leaves the
# others, and ended.txt has the exit codes.
out=$(realpath -m "$1")
mkdir -p "$out"
cd "$(dirname "$0")/.." || exit 1
part() {
    name=$1
    shift
    echo "$name: $*" >&2
    "$@" > "$out/$name.json" 2> "$out/$name.txt"
    echo "$? $name" >> "$out/ended.txt"
}
part tests python -m pytest -q -n0 kernels model/test_gpu.py
for model in "${@:2}"; do
    name=$(basename "${model##*:}")
    given=(-hf "$model")
    [ -f "$model" ] && given=(-m "$model")
    part "$name-kernels" python -m kernels --json --model "$model"
    part "$name-requests" qcls-gguf bench -c mission -c fashion-8 -c fashion-8-joint --batch 1 --batch 4 \
        "${given[@]}" --format json --quiet
    for config in mission fashion-8 fashion-8-joint; do
        part "$name-$config" qcls-gguf compare -c $config --method naive --method prefix --method batched \
            "${given[@]}" --format json --quiet
    done
done
