#!/usr/bin/env bash
# Usage: stop_dist.sh
# Stops the processes that run_dist.sh started, and no others: first the workers, which save, then the
# parameter servers. Kills those that do not end within STOP_SECS, and then fails.
source "$(dirname "${BASH_SOURCE[0]}")/dist.sh"
