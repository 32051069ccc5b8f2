#!/usr/bin/env bash
# Usage: run_dist.sh [--max_restarts=N]
# Starts the parameter servers and workers of config_dist.sh on their hosts, over ssh, and returns.
# First checks that every host can be reached and has the folders and scripts. If a process cannot be
# started or fails at once, stops the others again; so does Ctrl-C, and a second one ends it. Between
# machines the processes use TLS; this script makes and copies their certificates. A process that is
# killed is started again on its host up to N times, after pauses that grow; one that runs for less
# than 30 s five times in a row is left out.
source "$(dirname "${BASH_SOURCE[0]}")/dist.sh"
