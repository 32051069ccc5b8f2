#!/usr/bin/env bash
# Usage: run_dist.sh [--max_restarts=N]
# Starts the parameter servers and workers of config_dist.sh on their hosts, over ssh, and returns.
# First checks that every host can be reached and has the folders and scripts. If a process cannot be
# started or fails at once, stops the others again. Between machines the processes use TLS; this script
# makes and copies their certificates. A process that is killed is started again on its host up to N
# times, after pauses that grow; one that runs for less than 30 s five times in a row is left out.
source "$(dirname "${BASH_SOURCE[0]}")/dist.sh"

LOAD_SECS=120 # in which the processes load their modules
SETTLE_SECS=2  # after that; a process that fails within this time is reported

declare -A SCRIPTS=([ps]="${PS_SCRIPT}" [worker]="${WORKER_SCRIPT}")

# Prints VARIABLE=VALUE and a zero byte for each setting of a job's script that is set here.
given_settings() { # JOB_NAME
  local name names
  # shellcheck disable=SC2016
  names="$(sed -n 's/^: "${\([A-Z_][A-Z0-9_]*\):=.*/\1/p' "${REPO}/${SCRIPTS[$1]}")"
  for name in TERNGRAD_VENV ${names}; do
    [[ ! "${!name:-}" ]] || printf '%s\0' "${name}=${!name}"
  done
}

# Prints the network settings of a host's processes, in the same form.
network_settings() { # HOST
  case "${security}" in
    given)
      printf '%s\0' "TLS_CA=${TLS_CA:-}" "TLS_CERT=${TLS_CERT:-}" "TLS_KEY=${TLS_KEY:-}" \
        "TLS_DENY=${TLS_DENY:-}"
      ;;
    made)
      printf "%s=~/.terngrad/certs/%s\0" TLS_CA ca.crt TLS_CERT "$1.crt" TLS_KEY "$1.key" \
        TLS_DENY denied.txt
      ;;
    none) printf 'ALLOW_INSECURE_NETWORK=True\0' ;;
  esac
}

check_lines() { # HOST
  local i data
  for i in $(processes_of "$1"); do
    data=
    [[ "${JOBS[i]}" == ps ]] || data="${DATA_DIR[${TASKS[i]}]}"
    quoted check "$(label_of "${i}")" "$(name_of "${i}")" "${WORKSPACE}" "${SCRIPTS[${JOBS[i]}]}" \
      "${data}"
  done
}

start_lines() { # HOST
  local i job task file settings arguments
  [[ ! "${TERNGRAD_SECRET:-}" ]] || quoted export "TERNGRAD_SECRET=${TERNGRAD_SECRET}"
  if [[ "${security}" == made ]]; then
    for file in ca.crt "$1.crt" "$1.key"; do
      quoted receive "${file}" "$(< "${CERTS_DIR}/${file}")"
    done
    quoted receive denied.txt "$(cat "${CERTS_DIR}/denied.txt" 2> /dev/null || true)"
  fi
  for i in $(processes_of "$1"); do
    job="${JOBS[i]}" task="${TASKS[i]}"
    mapfile -d '' -t settings < <(given_settings "${job}"; network_settings "$1")
    arguments=("$(join , "${PS_HOSTS[@]}")" "$(join , "${WORKER_HOSTS[@]}")" "${job}" "${task}")
    [[ "${job}" == ps ]] || arguments+=("${WORKER_DEVICES[task]}" "${DATA_DIR[task]}")
    quoted start "$(label_of "${i}")" "$(name_of "${i}")" "${EXPERIMENT_ID}" "${MAX_RESTARTS}" \
      "${WORKSPACE}" "${SCRIPTS[${job}]}" "${settings[@]}" -- "${arguments[@]}" "${EXPERIMENT_ID}"
  done
}

# Waits for the first line of each process, for all together not longer than for one.
load_lines() { # HOST
  local i
  echo "deadline=\$((SECONDS + ${LOAD_SECS}))"
  for i in $(processes_of "$1"); do
    echo "$(quoted await_first_line "$(label_of "${i}")" "$(name_of "${i}")") \"\${deadline}\" ${LOAD_SECS}"
  done
}

settle_lines() { # HOST
  local i
  echo "sleep ${SETTLE_SECS}"
  for i in $(processes_of "$1"); do
    quoted settle "$(label_of "${i}")" "$(name_of "${i}")"
  done
}

if [[ "${1:-}" == --max_restarts=* ]]; then
  MAX_RESTARTS="${1#*=}"
  check_restarts --max_restarts
  shift
fi
(($# == 0)) || die "allowed is --max_restarts=N; for the rest edit config_dist.sh or set variables"
for script in "${SCRIPTS[@]}"; do
  [[ -f "${REPO}/${script}" ]] || die "no such script: ${REPO}/${script}"
done
# What protects the processes from others: loopback, certificates that are given or made, or nothing.
if [[ "${TLS_CA:-}${TLS_CERT:-}${TLS_KEY:-}" ]]; then
  security=given
elif on_loopback && [[ "${TLS}" != True ]]; then
  security=loopback
elif [[ "${TLS}" == False ]]; then
  security=none
else
  security=made
fi

[[ "${security}" == made || "${security}" == given ]] || share_secret

on_all_hosts check_lines
((${#PROBLEMS[@]} == 0)) || die "nothing was started: $(join "; " "${PROBLEMS[@]}")"
[[ "${security}" != made ]] || bash "${REPO}/scripts/make_certs.sh" "${CERTS_DIR}" "${HOSTS[@]}"

interrupted=
trap 'interrupted=yes' INT TERM
for lines in start_lines load_lines settle_lines; do
  on_all_hosts "${lines}"
  answers >> "${WORK}/told"
  ((${#PROBLEMS[@]} == 0)) && [[ ! "${interrupted}" ]] || break
done
[[ ! "${interrupted}" ]] || PROBLEMS+=("interrupted")
if ((${#PROBLEMS[@]})); then
  failures="$(join "; " "${PROBLEMS[@]}")"
  stop_all
  mapfile -t running < <(stop_problems may_still_run)
  remaining="$(join "; " "${running[@]}")"
  die "all processes were stopped again${remaining:+, except where ${remaining}}: ${failures}"
fi
cat "${WORK}/told"
echo "Experiment ${EXPERIMENT_ID} runs. Watch: bash scripts/status_dist.sh  Stop: bash scripts/stop_dist.sh"
