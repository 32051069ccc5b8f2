#!/usr/bin/env bash
# Usage: install_test_tools.sh [--all]
# Installs sshd, ip and tc, without which the tests of several hosts are skipped, and Java for those
# of Spark. --all adds what only exhaustive tests need: Slurm's scontrol, compiler and emulator for
# 64-bit ARM, and the compiler that builds Horovod. For Debian and Ubuntu, as root. Does not install
# sshd if systemd would start it as a service at each boot.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=()
# Adds a package unless its programs are there.
needs() {
  local program
  for program in "${@:2}"; do
    command -v "${program}" > /dev/null || { packages+=("$1"); return; }
  done
}
needs openssh-server sshd
needs iproute2 ip tc
needs openjdk-17-jre-headless java
if [[ "${1-}" == --all ]]; then
  needs g++ g++
  needs make make
  needs openssl openssl
  needs slurm-client scontrol
  needs g++-aarch64-linux-gnu aarch64-linux-gnu-g++
  needs qemu-user-static qemu-aarch64-static
fi
((${#packages[@]})) || exit 0
if [[ -d "${SYSTEMD:-/run/systemd/system}" && " ${packages[*]} " == *" openssh-server "* ]]; then
  die "sshd would run as a service here; if you want that: apt-get install ${packages[*]}"
fi
apt_install "${packages[@]}"
