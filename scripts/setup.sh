#!/usr/bin/env bash
# Usage: setup.sh [dev | docs]
# Makes the virtual environment (TERNGRAD_VENV, or .venv in the repository), installs the packages and
# compiles the native kernels. Does nothing that is up to date.
# `dev` adds the test tools, `docs` what scripts/build_docs.sh needs, which `dev` includes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

find_python() {
  local python
  for python in python3 python3.13 python3.12 python3.11 python3.10; do
    "${python}" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' \
      2> /dev/null && echo "${python}" && return
  done
  die "needs Python 3.10 to 3.13 with venv; on Debian or Ubuntu: sudo apt-get install -y python3-venv"
}

# Prints what the installation depends on.
fingerprint() {
  { cat "${REPO}/setup.py"; echo "${REPO}"; "${VENV}/bin/python" -V; } | sha256sum
}

device=cpu
nvidia-smi > /dev/null 2>&1 && device=gpu
extras="${device}${1:+,$1}"

if [[ ! -x "${VENV}/bin/pip" ]]; then
  python="$(find_python)"
  "${python}" -m venv "${VENV}"
fi

stamp="${VENV}/terngrad-setup-${extras}"
fingerprint="$(fingerprint)"
if [[ ! -f "${stamp}" || "$(< "${stamp}")" != "${fingerprint}" ]]; then
  echo "Installing TensorFlow and the other packages (extras ${extras}) into ${VENV} ..."
  quiet=()
  [[ -t 1 ]] || quiet=(--quiet)
  # The kernels are built below: pip would install another TensorFlow to build them against.
  TERNGRAD_WITHOUT_KERNELS=1 "${VENV}/bin/python" -m pip install "${quiet[@]}" \
    --disable-pip-version-check -e "${REPO}[${extras}]"
  # An installation with the test tools includes the plain one.
  echo "${fingerprint}" | tee "${VENV}/terngrad-setup-${device}" > "${stamp}"
fi

export PYTHONPATH="${REPO}"
"${VENV}/bin/python" -m terngrad.ops.build --if-needed \
  || echo "setup.sh: continuing with the reference ops, which are slower" >&2
