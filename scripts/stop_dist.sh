#!/usr/bin/env bash
# Usage: stop_dist.sh
# Ends the processes that run_dist.sh started, and no others: first the workers, which save, then the
# parameter servers. What does not end within STOP_SECS is killed.
source "$(dirname "${BASH_SOURCE[0]}")/dist.sh"

(($# == 0)) || die "takes no arguments; settings stand in config_dist.sh or in the environment"
stop_all
((${#PROBLEMS[@]} == 0)) || die "processes may still run: $(join "; " "${PROBLEMS[@]}")"
