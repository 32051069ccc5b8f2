#!/usr/bin/env bash
# Usage: status_dist.sh [--lines=N] [--fetch=DIR]
# Shows for each process of config_dist.sh whether it runs, and the last N (3) lines of its log. With
# --fetch copies the whole logs into DIR. Exits with 0 if all processes run or ended well, and with
# --fetch no log is missing.
source "$(dirname "${BASH_SOURCE[0]}")/dist.sh"
