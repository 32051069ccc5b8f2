#!/usr/bin/env bash
# Usage: status_dist.sh [--lines=N] [--fetch=DIR]
# Shows for each process of config_dist.sh whether it runs, and the last N (3) lines of its log. With
# --fetch copies the whole logs into DIR. Exits with 0 if all processes run or ended well and no log
# is missing.
source "$(dirname "${BASH_SOURCE[0]}")/dist.sh"

line_count=3
directory=
for argument in "$@"; do
  case "${argument}" in
    --lines=*) line_count="${argument#*=}" ;;
    --fetch=?*) directory="${argument#*=}" ;;
    *) die "allowed are --lines=N and --fetch=DIR, got '${argument}'" ;;
  esac
done
[[ "${line_count}" =~ ^[0-9]{1,6}$ ]] || die "--lines must be an integer >= 0, got '${line_count}'"
[[ ! "${directory}" ]] || mkdir -p "${directory}" 2> /dev/null || die "cannot make the folder ${directory}"

status_lines() { # HOST
  local i
  for i in $(processes_of "$1"); do
    quoted show "$(label_of "${i}")" "$(name_of "${i}")" "${line_count}"
  done
}

# Copies the logs of a host's processes, each completely or not at all, and prints which ones failed.
fetch() { # HOST
  local i name got="${WORK}/log.${BASHPID}"
  for i in $(processes_of "$1"); do
    name="$(name_of "${i}")"
    if ! on_host "$1" "$(quoted print_log "${name}") || exit 1" > "${got}" 2> "${got}.err" \
      || ! answered "${got}"; then
      echo "$(label_of "${i}"): its log could not be fetched ($(reason "${got}.err"))"
    elif ! { answer "${got}" > "${directory}/${name}.log.new" \
      && mv "${directory}/${name}.log.new" "${directory}/${name}.log"; } 2> /dev/null; then
      echo "$(label_of "${i}"): cannot write ${directory}/${name}.log"
    fi
  done
}

on_all_hosts status_lines
answers
for problem in "${PROBLEMS[@]}"; do
  [[ "${problem}" != *" cannot be reached ("* ]] || echo "${problem}"
done
if [[ "${directory}" ]]; then
  processes=()
  for host in "${HOSTS[@]}"; do
    fetch "${host}" >> "${WORK}/unfetched" &
    processes+=("$!")
  done
  wait "${processes[@]}"
  cat "${WORK}/unfetched"
  echo "Logs: ${directory}"
fi
((${#PROBLEMS[@]} == 0)) && [[ ! -s "${WORK}/unfetched" ]]
