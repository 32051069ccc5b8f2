#!/usr/bin/env bash
# Usage: install_horovod.sh
# Builds Horovod against the virtual environment's TensorFlow and installs it there: with Gloo, and
# with MPI where there is an mpicxx, as of the extra `mpi`. Takes some 5 minutes; does nothing where
# Horovod works already.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

VERSION=0.28.1

loads() { "${PYTHON}" -c "import $1" > /dev/null 2>&1; }

[[ "${PYTHON}" == "${VENV}/bin/python" ]] && loads tensorflow \
  || die "needs TensorFlow in ${VENV}; install it with scripts/setup.sh"
if loads horovod.tensorflow; then
  echo "Horovod works already."
  exit
fi
for tool in g++ make; do
  command -v "${tool}" > /dev/null \
    || die "needs g++ and make; on Debian or Ubuntu: sudo apt-get install -y g++ make"
done

work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
pip=("${PYTHON}" -m pip --disable-pip-version-check --quiet)

# Beside the environment, which needs none of these: newer ones cannot build Horovod.
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
# The operations inside XLA use what TensorFlow no longer has; nothing else needs them.
sed -i '/xla_mpi_ops\.cc/d' "${source}/horovod/tensorflow/CMakeLists.txt"

echo "Building Horovod ${VERSION}; this takes some minutes ..."
MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}" "${pip[@]}" wheel --no-deps --no-build-isolation \
  -w "${work}/wheel" "${source}" || die "Horovod did not build; the reason stands above"

unset PYTHONPATH
"${pip[@]}" uninstall -y horovod > /dev/null 2>&1 # one that does not work
"${pip[@]}" install "${work}"/wheel/horovod-*.whl || die "could not install Horovod"
if ! loads horovod.tensorflow; then
  "${pip[@]}" uninstall -y horovod
  die "Horovod was built, but does not load; it is not installed"
fi
echo "Horovod ${VERSION} is installed in ${VENV}."
