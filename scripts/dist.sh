# shellcheck shell=bash
# Sourced by run_dist.sh, status_dist.sh and stop_dist.sh: hands the settings to the launcher.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set -a # the launcher reads them from the environment
if [[ "${DIST_CONFIG:-}" ]]; then
  [[ -r "${DIST_CONFIG}" ]] || die "no such file: DIST_CONFIG=${DIST_CONFIG}"
  # shellcheck source=config_dist.sh
  source "${DIST_CONFIG}"
fi
source "$(dirname "${BASH_SOURCE[0]}")/config_dist.sh" # sets what is not set yet
set +a

entries=() # of arrays, which an environment cannot hold
for name in PS_HOSTS WORKER_HOSTS WORKER_DEVICES DATA_DIR; do
  [[ "$(declare -p "${name}")" == "declare -a"* ]] || continue
  declare -n array="${name}"
  for entry in "${array[@]}"; do entries+=("${name}=${entry}"); done
done
exec "${PYTHON}" "${REPO}/inception/launching/dist.py" "$(basename "$0")" "${entries[@]}" -- "$@"
