#!/usr/bin/env bash
# Usage: split_dataset.sh DIR N I
# Splits the train-* shards of DIR into N contiguous blocks and links block I (0 to N - 1) into
# DIR/worker_I_of_N, with labels.txt if DIR has one. If N does not divide the number of shards, the
# blocks' sizes differ by one.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[[ $# -eq 3 ]] || die "needs 3 arguments, DIR N I, got $#"
[[ -d "$1" ]] || die "no such folder: $1"
[[ "$2" =~ ^[1-9][0-9]{0,5}$ ]] || die "N must be an integer >= 1, got '$2'"
[[ "$3" =~ ^(0|[1-9][0-9]{0,5})$ && "$3" -lt "$2" ]] || die "I must be 0 to $(($2 - 1)), got '$3'"

directory="$(cd "$1" && pwd)"
shopt -s nullglob
shards=("${directory}"/train-*)
count=${#shards[@]}
((count >= $2)) || die "needs at least one train-* shard for each of $2 workers, ${directory} has ${count}"

begin=$((count * $3 / $2))
end=$((count * ($3 + 1) / $2))
block="${directory}/worker_$3_of_$2"
mkdir -p "${block}"
# Links of an earlier split.
find "${block}" -type l -name 'train-*' -delete
[[ "$(readlink "${block}/labels.txt")" != "${directory}/labels.txt" ]] || rm "${block}/labels.txt"
ln -s "${shards[@]:begin:end-begin}" "${block}"
if [[ -e "${directory}/labels.txt" && ! -e "${block}/labels.txt" ]]; then # a user's copy stays
  ln -s "${directory}/labels.txt" "${block}"
fi
echo "${block}: $((end - begin)) of ${count} shards"
