#!/usr/bin/env bash
# Usage: run_dist_cifar10.sh
# A small example: one parameter server and two workers train the paper's CIFAR-10 net on this machine
# and print their lines together. Ctrl-C lets all save and end. Exits with the status of the first
# failure. Set any of these settings, or those of run_single_worker_cifarnet.sh, in the environment.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${PS_HOSTS:=127.0.0.1:2222}"
: "${WORKER_HOSTS:=127.0.0.1:2224,127.0.0.1:2226}"
: "${WORKER_DEVICES:=0,0}"      # for each worker: its GPU
: "${DATA_DIR:=${HOME}/dataset/cifar10-data}"
: "${EXPERIMENT_ID:=$(date +%Y-%m-%d_%H-%M-%S)}" # an earlier run's ID continues from its checkpoint
: "${MAX_STEPS:=1000}"
export MAX_STEPS
GRACE_SECS=90 # time to save; processes that still run are killed

IFS=, read -ra ps_hosts <<< "${PS_HOSTS}"
IFS=, read -ra workers <<< "${WORKER_HOSTS}"
IFS=, read -ra devices <<< "${WORKER_DEVICES}"
((${#ps_hosts[@]} && ${#workers[@]})) || die "PS_HOSTS and WORKER_HOSTS need at least one HOST:PORT"
((${#devices[@]} == ${#workers[@]})) \
  || die "WORKER_DEVICES has ${#devices[@]} entries, WORKER_HOSTS ${#workers[@]}; each worker needs one"
require_records "${DATA_DIR}" \
  "slim.download_and_convert_data --dataset_name cifar10 --dataset_dir '${DATA_DIR}'"

declare -A running=() # process id by label
code=0
deadline=''        # in SECONDS; set when all processes should end
interrupts=0
servers_asked=''

# Lets the workers save and end; the servers end after them.
end() { # STATUS
  ((code)) || code="$1"
  [[ "${deadline}" ]] || deadline=$((SECONDS + GRACE_SECS))
  signal TERM worker
}

signal() { # SIGNAL JOB_NAME
  local label
  for label in "${!running[@]}"; do
    [[ "${label}" != "$2 "* ]] || kill "-$1" "${running[${label}]}" 2> /dev/null || true
  done
}

launch() { # LABEL SCRIPT ARGUMENT...
  # In its own session, so that Ctrl-C reaches only this script, which ends the servers last.
  setsid bash "${REPO}/scripts/$2" "${@:3}" < /dev/null > >(trap '' INT; exec sed -u "s/^/[$1] /") 2>&1 &
  running["$1"]=$!
}

# Removes ended processes from `running`.
reap() {
  local label status
  for label in "${!running[@]}"; do
    kill -0 "${running[${label}]}" 2> /dev/null && continue
    wait "${running[${label}]}" && status=0 || status=$?
    unset "running[${label}]"
    ((status != 137)) || echo "$(basename "$0"): ${label} was killed" >&3
    ((status == 0)) || [[ "${deadline}" ]] || end "${status}"
  done
}

share_secret
trap 'end 130; interrupts=$((interrupts + 1))' INT
trap 'end 143' TERM
trap 'end 129' HUP
for i in "${!ps_hosts[@]}"; do
  launch "ps ${i}" run_single_ps_cifar10.sh "${PS_HOSTS}" "${WORKER_HOSTS}" ps "${i}" "${EXPERIMENT_ID}"
done
for i in "${!workers[@]}"; do
  launch "worker ${i}" run_single_worker_cifarnet.sh "${PS_HOSTS}" "${WORKER_HOSTS}" worker "${i}" \
    "${devices[i]}" "${DATA_DIR}" "${EXPERIMENT_ID}"
done
exec 3>&2 2> /dev/null # bash would print a line of its own about a process that is killed
while ((${#running[@]})); do
  if [[ ! "${servers_asked}" && "${!running[*]}" != *worker* ]]; then
    servers_asked=yes
    [[ "${deadline}" ]] || deadline=$((SECONDS + GRACE_SECS))
    signal TERM ps
  fi
  if ((interrupts > 1 || SECONDS >= ${deadline:-SECONDS + 1})); then
    signal KILL worker
    signal KILL ps
  fi
  reap
  sleep 0.2 || true
done
exit "${code}"
