#!/usr/bin/env bash
# Usage: task.sh PROGRAM FLAG...
# Runs the program as one task of a job, with the certificate of its node; requeue.sbatch starts this
# on each. A program that is killed is started again, at most MAX_RESTARTS times.
set -euo pipefail
source scripts/common.sh

network=(--allow_insecure_network)
if [[ "${TLS:-}" != False ]]; then
  own="${TERNGRAD_CERTS}/${SLURMD_NODENAME}"
  network=(--tls_ca="${TERNGRAD_CERTS}/ca.crt" --tls_cert="${own}.crt" --tls_key="${own}.key")
fi

# Slurm signals this shell alone, or the program, too, which takes a second signal as the same request.
program='' is_asked=''
trap 'is_asked=1; [[ -z "${program}" ]] || kill -TERM "${program}" 2> /dev/null' TERM
for ((left = MAX_RESTARTS; ; left--)); do
  "${PYTHON}" -u -m "$@" --cluster=auto "${network[@]}" &
  program=$!
  [[ -z "${is_asked}" ]] || kill -TERM "${program}" 2> /dev/null || true # before it had started
  code=0
  await "${program}" || code=$?
  program=''
  case "${code}" in
    132 | 134 | 135 | 136 | 137 | 139) ;; # killed, or crashed
    *) exit "${code}" ;;
  esac
  ((left > 0)) && [[ -z "${is_asked}" ]] || exit "${code}"
  echo "Task ${SLURM_PROCID} was killed by signal $((code - 128)) and is started again." >&2
  sleep 1
done
