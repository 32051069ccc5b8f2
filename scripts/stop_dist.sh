#!/usr/bin/env bash
# Usage: stop_dist.sh
# Stops the processes that run_dist.sh started, and no others: first the workers, which save, then the
# parameter servers. Kills those that do not end within STOP_SECS, and then fails.
source "$(dirname "${BASH_SOURCE[0]}")/dist.sh"

(($# == 0)) || die "takes no arguments; edit config_dist.sh or set variables in the environment"
stop_all
mapfile -t running < <(stop_problems may_still_run)
mapfile -t ended < <(stop_problems ended)
((${#running[@]} == 0)) || die "processes may still run: $(join "; " "${running[@]}" "${ended[@]}")"
if ((${#ended[@]} == ${#JOBS[@]})) && [[ "${ended[*]}" != *": killed because "* ]]; then
  die "nothing was started of PS_HOSTS=$(join , "${PS_HOSTS[@]}") and" \
    "WORKER_HOSTS=$(join , "${WORKER_HOSTS[@]}"): set these, or DIST_CONFIG, as for run_dist.sh"
fi
((${#ended[@]} == 0)) || die "$(join "; " "${ended[@]}")"
