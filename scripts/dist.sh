# shellcheck shell=bash
# Sourced by run_dist.sh, status_dist.sh and stop_dist.sh: lists the processes of config_dist.sh and
# runs commands on all their hosts at once.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [[ "${DIST_CONFIG:-}" ]]; then
  [[ -r "${DIST_CONFIG}" ]] || die "no such file: DIST_CONFIG=${DIST_CONFIG}"
  # shellcheck source=config_dist.sh
  source "${DIST_CONFIG}"
fi
source "$(dirname "${BASH_SOURCE[0]}")/config_dist.sh" # sets what is not set yet

HOSTS=()                             # each host once
JOBS=() TASKS=() ADDRESSES=()        # of each process, servers first
PROBLEMS=()                          # of the last command on all hosts
MARK="terngrad-dist answers:"        # separates the answer from output of the host's start-up files
WORK="$(mktemp -d)"
trap 'rm -rf "${WORK}"' EXIT

# Turns a setting that is a text with commas into an array.
split() { # NAME
  [[ "$(declare -p "$1")" != "declare -a"* ]] || return 0
  local -n setting="$1"
  local items=()
  IFS=, read -rd '' -a items < <(printf '%s\0' "${setting}") || true
  setting=("${items[@]}")
}

# Prints the words with a text between them.
join() { # TEXT WORD...
  local text="$1" word joined=
  shift
  for word in "$@"; do joined+="${joined:+${text}}${word}"; done
  printf '%s' "${joined}"
}

# Prints the words of a command, quoted for bash.
quoted() {
  printf '%q ' "$@"
  echo
}

host_of() { # HOST:PORT
  local host="${1%:*}"
  host="${host#[}"
  echo "${host%]}"
}

is_loopback() { [[ "$1" == localhost || "$1" =~ ^127\.[0-9.]+$ || "$1" == ::1 ]]; }

check_address() { # NAME HOST:PORT
  local host='[A-Za-z0-9_][A-Za-z0-9._-]*' port="${2##*:}"
  [[ "$2" =~ ^(${host}|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}$ && "${port}" -lt 65536 ]] \
    || die "$1: must be HOST:PORT, with a port from 1 to 65535, got '$2'"
}

add_processes() { # JOB_NAME SETTING
  local -n addresses="$2"
  local task address host
  ((${#addresses[@]})) || die "$2 must list at least one HOST:PORT"
  for task in "${!addresses[@]}"; do
    address="${addresses[task]}"
    check_address "$2" "${address}"
    [[ " ${ADDRESSES[*]} " != *" ${address} "* ]] \
      || die "${address} appears twice in PS_HOSTS and WORKER_HOSTS; each process needs its own"
    JOBS+=("$1") TASKS+=("${task}") ADDRESSES+=("${address}")
    host="$(host_of "${address}")"
    [[ " ${HOSTS[*]} " == *" ${host} "* ]] || HOSTS+=("${host}")
  done
}

# Repeats the entry of a list that has one for all workers.
deal_out() { # NAME
  local -n entries="$1"
  local workers="${#WORKER_HOSTS[@]}" given="${#entries[@]}"
  while ((given == 1 && ${#entries[@]} < workers)); do entries+=("${entries[0]}"); done
  ((${#entries[@]} == workers)) \
    || die "$1 has ${given} entries; allowed are 1 (for all workers) or ${workers} (one for each)"
}

# Whether all hosts are this machine; fails if only some are.
on_loopback() {
  local host local_hosts=0
  for host in "${HOSTS[@]}"; do
    ! is_loopback "${host}" || local_hosts=$((local_hosts + 1))
  done
  ((local_hosts == 0 || local_hosts == ${#HOSTS[@]})) \
    || die "PS_HOSTS and WORKER_HOSTS mix this machine's loopback with other hosts, which cannot reach it"
  ((local_hosts))
}

label_of() { echo "${JOBS[$1]} ${TASKS[$1]} (${ADDRESSES[$1]})"; }
name_of() { echo "${JOBS[$1]}_${TASKS[$1]}_${ADDRESSES[$1]}"; }

# Prints the indices of a host's processes, of one job or of all jobs.
processes_of() { # HOST [JOB_NAME]
  local i
  for i in "${!JOBS[@]}"; do
    [[ "$(host_of "${ADDRESSES[i]}")" != "$1" || "${JOBS[i]}" != "${2:-${JOBS[i]}}" ]] || echo "${i}"
  done
}

# Runs lines of bash on a host, after dist_host.sh.
on_host() { # HOST LINES
  local shell=(bash -s)
  if ! is_loopback "$1"; then
    shell=(ssh -o BatchMode=yes -o "ConnectTimeout=${CONNECT_SECS}" -o ServerAliveInterval=15)
    [[ ! "${SSH_CONFIG}" ]] || shell+=(-F "${SSH_CONFIG}")
    shell+=(-- "$1" bash -s)
  fi
  # In braces, so that bash reads everything before it runs anything.
  printf '{\n%s\nprintf "\\n%%s\\n" %q\n%s\nexit 0\n}\n' \
    "$(< "${REPO}/scripts/dist_host.sh")" "${MARK}" "$2" | "${shell[@]}"
}

# Whether a host ran the lines: some accounts exit with success without running them.
answered() { grep -qaxF -- "${MARK}" "$1"; } # FILE

# Prints the text after the mark.
answer() { sed "1,/^${MARK}\$/d" "$1"; } # FILE

# Prints the last line of output of a host that could not be reached.
reason() { # FILE...
  local text
  text="$(cat "$@" | LC_ALL=C tr -d '\000-\011\013-\037\177' | grep -v '^ *$' | tail -n 1 || true)"
  echo "${text:-no reason given}"
}

# Runs the lines that a function prints for each host, on all hosts at once. The answers are the
# files ${WORK}/0, ${WORK}/1, ... in the order of HOSTS.
on_all_hosts() { # FUNCTION [ARGUMENT...]
  local i host lines line processes=()
  PROBLEMS=()
  for i in "${!HOSTS[@]}"; do
    lines="$("$1" "${HOSTS[i]}" "${@:2}")"
    # Ctrl-C must not interrupt a host in the middle of its work.
    (trap '' INT; on_host "${HOSTS[i]}" "${lines}") > "${WORK}/${i}.out" 2> "${WORK}/${i}.err" &
    processes+=("$!")
  done
  for i in "${!HOSTS[@]}"; do
    host="${HOSTS[i]}"
    await "${processes[i]}" && answered "${WORK}/${i}.out" \
      || PROBLEMS+=("${host} cannot be reached ($(reason "${WORK}/${i}.out" "${WORK}/${i}.err"))")
    answer "${WORK}/${i}.out" > "${WORK}/${i}"
    while read -r line; do
      PROBLEMS+=("${host}: ${line#!}")
    done < <(grep -a '^!' "${WORK}/${i}" | LC_ALL=C tr -d '\000-\011\013-\037\177')
  done
}

# Prints the answers without the marks of problems.
answers() {
  local i
  for i in "${!HOSTS[@]}"; do
    sed 's/^!//' "${WORK}/${i}" | LC_ALL=C tr -d '\000-\010\013-\037\177'
  done
}

stop_lines() { # HOST JOB_NAME
  local i words=(stop "${STOP_SECS}")
  for i in $(processes_of "$1" "$2"); do
    words+=("$(label_of "${i}")" "$(name_of "${i}")")
  done
  quoted "${words[@]}"
}

# Stops the workers, then the servers: workers may need them to save.
stop_all() {
  local problems
  on_all_hosts stop_lines worker
  answers
  problems=("${PROBLEMS[@]}")
  on_all_hosts stop_lines ps
  answers
  [[ "${problems[*]}" == "${PROBLEMS[*]}" ]] || PROBLEMS=("${problems[@]}" "${PROBLEMS[@]}")
}

# Prints the problems of `stop_all` after which processes may still run, or the others.
stop_problems() { # may_still_run | ended
  local problem kind
  for problem in "${PROBLEMS[@]}"; do
    kind=may_still_run
    [[ "${problem}" != *": killed because "* && "${problem}" != *": not started" ]] || kind=ended
    [[ "$1" != "${kind}" ]] || echo "${problem}"
  done
}

for name in PS_HOSTS WORKER_HOSTS WORKER_DEVICES DATA_DIR; do split "${name}"; done
add_processes ps PS_HOSTS
add_processes worker WORKER_HOSTS
deal_out WORKER_DEVICES
deal_out DATA_DIR
for name in CONNECT_SECS STOP_SECS; do
  [[ "${!name}" =~ ^[1-9][0-9]{0,5}$ ]] || die "${name} must be whole seconds >= 1, got '${!name}'"
done
check_restarts() { # NAME
  [[ "${MAX_RESTARTS}" =~ ^(0|[1-9][0-9]{0,5})$ ]] \
    || die "$1 must be an integer >= 0, got '${MAX_RESTARTS}'"
}
check_restarts MAX_RESTARTS
[[ "${TLS}" =~ ^(auto|True|False)$ ]] || die "TLS must be auto, True or False, got '${TLS}'"
check_experiment_id "${EXPERIMENT_ID}"
[[ ! "${SSH_CONFIG}" || -f "${SSH_CONFIG}" ]] || die "no such file: SSH_CONFIG=${SSH_CONFIG}"
