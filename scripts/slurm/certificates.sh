# Sourced by the batch scripts: makes certificates of the job's nodes in TERNGRAD_CERTS, until its end;
# with TLS=False lets the tasks share a secret instead.
case "${TLS:-True}" in
  True) ;;
  False) # srun hands the environment to the tasks
    source scripts/common.sh
    share_secret
    return 0
    ;;
  *) echo "TLS=${TLS}: allowed are True and False" >&2; exit 1 ;;
esac
export TERNGRAD_CERTS="${CERTS:-${PWD}}/.certs-${SLURM_JOB_ID}" # a folder of this job: it is deleted
trap 'rm -rf "${TERNGRAD_CERTS}"' EXIT
(umask 077 && mkdir -p "${TERNGRAD_CERTS}")
mapfile -t nodes < <(scontrol show hostnames "${SLURM_JOB_NODELIST}")
bash scripts/make_certs.sh "${TERNGRAD_CERTS}" "${nodes[@]}"
