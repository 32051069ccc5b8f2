# shellcheck shell=bash
# Sourced by single_worker.sh and single_ps.sh: the common part of the processes of a training.
# Set TLS_CA, TLS_CERT and TLS_KEY (files of make_certs.sh) in the environment, and perhaps TLS_DENY
# (numbers of revoked certificates), or ALLOW_INSECURE_NETWORK=True if you trust the network.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export PYTHONUNBUFFERED=1 # so that the log can be followed

# Checks the arguments and sets PROGRAM, the command of this process without the flags of its job.
take_part() { # PS_HOSTS WORKER_HOSTS JOB_NAME EXPECTED_JOB_NAME TASK_ID EXPERIMENT_ID
  [[ "$3" == "$4" ]] || die "JOB_NAME must be $4, got '$3'"
  [[ "$5" =~ ^(0|[1-9][0-9]{0,5})$ ]] || die "TASK_ID must be an integer >= 0, got '$5'"
  check_experiment_id "$6"
  # The calling script sets DATASET_NAME.
  # shellcheck disable=SC2153
  PROGRAM=("${PYTHON}" -m inception.distributed_train --dataset_name "${DATASET_NAME}"
    --job_name "$3" --task_id "$5" --ps_hosts "$1" --worker_hosts "$2"
    --variable_update=parameter_server)
  [[ ! "${TLS_CA:-}${TLS_CERT:-}${TLS_KEY:-}" ]] \
    || PROGRAM+=(--tls_ca "${TLS_CA:-}" --tls_cert "${TLS_CERT:-}" --tls_key "${TLS_KEY:-}")
  [[ ! "${TLS_DENY:-}" ]] || PROGRAM+=(--tls_deny "${TLS_DENY}")
  [[ "${ALLOW_INSECURE_NETWORK:-}" != True ]] || PROGRAM+=(--allow_insecure_network)
}
