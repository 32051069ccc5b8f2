"""Starts the processes of scripts/config_dist.sh, which know who they are by their arguments."""
