#!/usr/bin/env bash
# Usage: install_horovod.sh
# Builds Horovod against the virtual environment's TensorFlow and installs it there: with Gloo, and
# with MPI if mpicxx is installed, for example by the extra `mpi`. Takes about 5 minutes; does nothing
# if Horovod already works.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

VERSION=0.28.1

loads() { "${PYTHON}" -c "import $1" > /dev/null 2>&1; }

[[ "${PYTHON}" == "${VENV}/bin/python" ]] && loads tensorflow \
  || die "needs TensorFlow in ${VENV}; install it with scripts/setup.sh"
if loads horovod.tensorflow; then
  echo "Horovod already works."
  exit
fi
for tool in g++ make; do
  command -v "${tool}" > /dev/null \
    || die "needs g++ and make; on Debian or Ubuntu: sudo apt-get install -y g++ make"
done

work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
pip=("${PYTHON}" -m pip --disable-pip-version-check --quiet)

# Outside the environment, which does not need these tools: newer versions cannot build Horovod.
"${pip[@]}" install --target "${work}/tools" \
  'setuptools<81' 'cmake>=3.18,<4' wheel packaging cloudpickle psutil pyyaml \
  || die "could not fetch the tools that build Horovod"
export PYTHONPATH="${work}/tools" PATH="${work}/tools/bin:${VENV}/bin:${PATH}"

export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1
export HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
"${pip[@]}" download --no-deps --no-build-isolation --no-binary horovod -d "${work}" \
  "horovod==${VERSION}" || die "could not fetch the sources of Horovod ${VERSION}"
tar -xzf "${work}/horovod-${VERSION}.tar.gz" -C "${work}"
source="${work}/horovod-${VERSION}"
# The operations for XLA use functions that TensorFlow no longer has; nothing else needs them.
sed -i '/xla_mpi_ops\.cc/d' "${source}/horovod/tensorflow/CMakeLists.txt"

echo "Building Horovod ${VERSION}; this takes a few minutes ..."
MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}" "${pip[@]}" wheel --no-deps --no-build-isolation \
  -w "${work}/wheel" "${source}" || die "Horovod did not build; see the reason above"

unset PYTHONPATH
"${pip[@]}" uninstall -y horovod > /dev/null 2>&1 # remove one that does not work
"${pip[@]}" install "${work}"/wheel/horovod-*.whl || die "could not install Horovod"
if ! loads horovod.tensorflow; then
  "${pip[@]}" uninstall -y horovod
  die "Horovod was built but cannot be loaded; it was not installed"
fi
echo "Horovod ${VERSION} is installed in ${VENV}."
