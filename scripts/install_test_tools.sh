#!/usr/bin/env bash
# Usage: install_test_tools.sh
# Installs sshd, ip and tc, without which the tests of several hosts are skipped, and Java for those
# of Spark. For Debian and Ubuntu, as root. Does not install sshd if systemd would start it as a service at each boot.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=()
command -v sshd > /dev/null || packages+=(openssh-server)
command -v ip > /dev/null && command -v tc > /dev/null || packages+=(iproute2)
command -v java > /dev/null || packages+=(openjdk-17-jre-headless)
((${#packages[@]})) || exit 0
if [[ -d "${SYSTEMD:-/run/systemd/system}" && " ${packages[*]} " == *" openssh-server "* ]]; then
  die "sshd would run as a service here; if you want that: apt-get install ${packages[*]}"
fi
apt_install "${packages[@]}"
