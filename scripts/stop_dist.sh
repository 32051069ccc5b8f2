#!/usr/bin/env bash
# Usage: stop_dist.sh
# Stops the processes that run_dist.sh started, and no others: first the workers, which save, then the
# parameter servers. Kills those that do not end within STOP_SECS.
source "$(dirname "${BASH_SOURCE[0]}")/dist.sh"

(($# == 0)) || die "takes no arguments; edit config_dist.sh or set variables in the environment"
stop_all
((${#PROBLEMS[@]} == 0)) || die "processes may still run: $(join "; " "${PROBLEMS[@]}")"
