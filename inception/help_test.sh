#!/usr/bin/env bash
# Usage: help_test.sh PROGRAM...
# Every program that Bazel built starts in another folder and prints its help.
set -euo pipefail
here="${PWD}"
cd "$(mktemp -d)"
for program in "$@"; do
  help="$("${here}/${program}" --help)"
  if ! grep -q -e "--[a-z]" <<< "${help}"; then
    echo "${program} --help names no flag: ${help}" >&2
    exit 1
  fi
done
