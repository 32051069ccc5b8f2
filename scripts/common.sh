# shellcheck shell=bash
# Sourced by the other scripts: defines REPO, VENV (TERNGRAD_VENV or .venv), PYTHON and functions.

unset CDPATH # with it cd prints, and may go elsewhere
REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${TERNGRAD_VENV:-${REPO}/.venv}"
[[ "${VENV}" == [/~]* ]] || VENV="${PWD}/${VENV}" # scripts change the folder
PYTHON="${VENV}/bin/python"
[[ -x "${PYTHON}" ]] || PYTHON=python3
export PYTHONPATH="${REPO}${PYTHONPATH:+:${PYTHONPATH}}"

die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# Waits for a process, even if signals interrupt the waiting, and returns its exit code.
await() {
  local code
  while true; do
    wait "$1" && code=0 || code=$?
    kill -0 "$1" 2> /dev/null || break
  done
  # If it ended while a trap ran, the code is that of the interrupted wait, and bash has its own.
  local last
  wait "$1" 2> /dev/null && last=0 || last=$?
  ((last == 127)) || code="${last}" # 127: the code above was its own, and bash has forgotten it
  return "${code}"
}

# Ends, with what makes them, if a folder has no records of a split: train, test or validation.
require_records() { # FOLDER SPLIT MODULE_AND_ARGUMENTS
  # From within: the folder's name may have the letters of a pattern.
  (cd -- "$1" 2> /dev/null && compgen -G "$2-*" > /dev/null) \
    || die "no records $2-* in $1; make them with: ${PYTHON} -m $3"
}

check_experiment_id() { # TEXT
  [[ "$1" =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] \
    || die "EXPERIMENT_ID must start with a letter or digit, then also '.', '_', '-', got '$1'"
}

# Lets the processes that this script starts share a secret, by which they know each other. Other
# users can read neither the environment nor, as printf is bash's own, an argument.
share_secret() {
  : "${TERNGRAD_SECRET:=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}"
  export TERNGRAD_SECRET
}

# Installs packages of Debian or Ubuntu, or ends with the line to type where this script may not.
apt_install() {
  command -v apt-get > /dev/null || die "needs $*; on Debian or Ubuntu: sudo apt-get install -y $*"
  ((EUID == 0)) || die "needs $*, which only root may install: sudo apt-get install -y $*"
  echo "Installing $* ..."
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq < /dev/null
  apt-get install -qq --no-install-recommends "$@" < /dev/null > /dev/null
}

# Installs Bazel if it is missing, and makes the virtual environment the one that it finds: Bazel's
# programs and rules use the first python3 on PATH.
prepare_bazel() {
  command -v bazel > /dev/null || apt_install bazel-bootstrap
  if [[ -x "${VENV}/bin/python3" && "$(command -v python3)" != "${VENV}/bin/python3" ]]; then
    export PATH="${VENV}/bin:${PATH}"
  fi
}
