#!/usr/bin/env bash
# Usage: help_test.sh PROGRAM
# A program that Bazel built starts in another folder and prints its help.
set -euo pipefail
program="${PWD}/$1"
cd "$(mktemp -d)"
help="$("${program}" --help)"
if ! grep -q -e "--[a-z]" <<< "${help}"; then
  echo "$1 --help names no flag: ${help}" >&2
  exit 1
fi
