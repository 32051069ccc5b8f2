"""Starts the processes of scripts/config_dist.sh; their arguments give them their roles."""
