# shellcheck shell=bash
# Sourced by single_worker.sh and single_ps.sh: what the processes of a training have in common.
# TLS_CA, TLS_CERT and TLS_KEY (the files that make_certs.sh makes) may stand in the environment, or
# ALLOW_INSECURE_NETWORK=True for a network in which all are trusted.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export PYTHONUNBUFFERED=1 # the log can be followed

# Checks who this process is, and makes PROGRAM, the command that becomes it, less its own flags.
take_part() { # PS_HOSTS WORKER_HOSTS JOB_NAME EXPECTED_JOB_NAME TASK_ID EXPERIMENT_ID
  [[ "$3" == "$4" ]] || die "JOB_NAME must be $4, got '$3'"
  [[ "$5" =~ ^(0|[1-9][0-9]{0,5})$ ]] || die "TASK_ID must be a number from 0, got '$5'"
  [[ "$6" =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] \
    || die "EXPERIMENT_ID must have letters, digits, '.', '_' and '-' only, got '$6'"
  # DATASET_NAME is a setting of the script that is run.
  # shellcheck disable=SC2153
  PROGRAM=("${PYTHON}" -m "inception.${DATASET_NAME}_distributed_train"
    --job_name "$3" --task_id "$5" --ps_hosts "$1" --worker_hosts "$2"
    --variable_update=parameter_server)
  [[ ! "${TLS_CA:-}${TLS_CERT:-}${TLS_KEY:-}" ]] \
    || PROGRAM+=(--tls_ca "${TLS_CA:-}" --tls_cert "${TLS_CERT:-}" --tls_key "${TLS_KEY:-}")
  [[ "${ALLOW_INSECURE_NETWORK:-}" != True ]] || PROGRAM+=(--allow_insecure_network)
}
