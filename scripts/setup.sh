#!/usr/bin/env bash
# Usage: setup.sh [dev | docs | mpi | spark | sweep]
# Makes the virtual environment (TERNGRAD_VENV, or .venv in the repository), installs the packages and
# compiles the native kernels. Does nothing that is up to date.
# `docs` adds what scripts/build_docs.sh needs, `mpi`, `spark` and `sweep` what docs/ say, `dev` all of
# them and the test tools. TERNGRAD_DEVICE is the TensorFlow: cpu or gpu; not set: gpu where this
# machine has one, or where it was gpu before. So a cluster's first machine without a GPU can make the
# environment of the others.
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

(($# <= 1)) && [[ "${1:-}" =~ ^(dev|docs|mpi|spark|sweep|)$ ]] \
  || die "takes dev, docs, mpi, spark, sweep or nothing, got '$*'"
device="${TERNGRAD_DEVICE:-}"
if [[ ! "${device}" ]]; then
  device=cpu
  { [[ -f "${VENV}/terngrad-setup-gpu" ]] || nvidia-smi > /dev/null 2>&1; } && device=gpu
fi
[[ "${device}" == cpu || "${device}" == gpu ]] || die "TERNGRAD_DEVICE must be cpu or gpu, got '${device}'"
extras="${device}${1:+,$1}"

# A name without its Python is a link to one that was removed.
if [[ -L "${VENV}/bin/python" && ! -x "${VENV}/bin/python" ]]; then
  die "the Python of ${VENV} is gone: remove this folder and run setup.sh again"
elif [[ ! -x "${VENV}/bin/pip" ]]; then
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
