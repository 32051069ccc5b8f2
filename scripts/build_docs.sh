#!/usr/bin/env bash
# Usage: build_docs.sh [SPHINX_ARGUMENT...]
# Builds the guides and the reference of the public names as a site, in build/docs/html. Sets up what
# that needs where the virtual environment lacks it. A warning is an error.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

"${VENV}/bin/python" -c "import myst_parser, sphinx" 2> /dev/null \
  || bash "${REPO}/scripts/setup.sh" docs

# The reference is made by importing the packages: it needs neither a GPU nor TensorFlow's notes.
export CUDA_VISIBLE_DEVICES=-1 TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=1
"${VENV}/bin/python" -m sphinx -M html "${REPO}" "${REPO}/build/docs" -c "${REPO}/docs" \
  -W --keep-going -q "$@"
echo "The site is in ${REPO}/build/docs/html; begin with index.html."
