#!/usr/bin/env bash
# Usage: run_dist_cifar10.sh
# A toy: one parameter server and two workers train the paper's CIFAR-10 net on this machine, with
# their lines side by side. Ctrl-C lets all save and end. The exit status is the first failure's.
# Each setting can be given in the environment, those of run_single_worker_cifarnet.sh, too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

: "${PS_HOSTS:=127.0.0.1:2222}"
: "${WORKER_HOSTS:=127.0.0.1:2224,127.0.0.1:2226}"
: "${WORKER_DEVICES:=0,0}"      # for each worker: its GPU
: "${DATA_DIR:=${HOME}/dataset/cifar10-data}"
: "${EXPERIMENT_ID:=$(date +%Y-%m-%d_%H-%M-%S)}" # of an earlier run: goes on from its checkpoint
: "${MAX_STEPS:=1000}"
export MAX_STEPS
GRACE_SECS=90 # for saving, before what still runs is killed

IFS=, read -ra ps_hosts <<< "${PS_HOSTS}"
IFS=, read -ra workers <<< "${WORKER_HOSTS}"
IFS=, read -ra devices <<< "${WORKER_DEVICES}"
((${#ps_hosts[@]} && ${#workers[@]})) || die "needs a host in PS_HOSTS and in WORKER_HOSTS"
((${#devices[@]} == ${#workers[@]})) \
  || die "WORKER_DEVICES has ${#devices[@]} entries, WORKER_HOSTS ${#workers[@]}; each worker needs one"
convert="slim.download_and_convert_data --dataset_name cifar10 --dataset_dir '${DATA_DIR}'"
compgen -G "${DATA_DIR}/train-*" > /dev/null \
  || die "no records in ${DATA_DIR}; make them with: ${PYTHON} -m ${convert}"

declare -A running=() # process of a label
code=0
deadline=''        # on the clock SECONDS; set once all shall end
interrupts=0
servers_asked=''

# Lets the workers save and end; the servers follow.
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
  # In sessions of their own: Ctrl-C is for this script, which lets the servers end last.
  setsid bash "${REPO}/scripts/$2" "${@:3}" < /dev/null > >(trap '' INT; exec sed -u "s/^/[$1] /") 2>&1 &
  running["$1"]=$!
}

# Takes note of the processes that have ended.
reap() {
  local label status
  for label in "${!running[@]}"; do
    kill -0 "${running[${label}]}" 2> /dev/null && continue
    wait "${running[${label}]}" && status=0 || status=$?
    unset "running[${label}]"
    ((status == 0)) || [[ "${deadline}" ]] || end "${status}"
  done
}

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
