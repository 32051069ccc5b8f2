# shellcheck shell=bash
# Sourced by the other scripts: defines REPO, VENV (TERNGRAD_VENV or .venv), PYTHON and `die`.

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${TERNGRAD_VENV:-${REPO}/.venv}"
PYTHON="${VENV}/bin/python"
[[ -x "${PYTHON}" ]] || PYTHON=python3
export PYTHONPATH="${REPO}${PYTHONPATH:+:${PYTHONPATH}}"

die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}
