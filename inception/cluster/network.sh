#!/usr/bin/env bash
# Usage: network.sh up N | rate N RATE | cable I up|down | run I COMMAND... | down
# Makes hosts on one machine, for measurements: N network namespaces, terngrad-0 to terngrad-<N-1>.
# Host I has an interface eth0 with address 10.77.0.<I+1>; a bridge joins them. Needs root and
# iproute2. Set NETWORK=name in the environment to have another network at the same time.
#   network.sh up 2              makes 2 hosts, as fast as the machine
#   network.sh rate 2 1gbit      limits each host in both directions; RATE as for tc, or "unshaped"
#   network.sh cable 0 down      pulls the cable of host 0; "up" puts it back
#   network.sh run 0 hostname    runs a command on host 0
#   network.sh down              removes all hosts
set -euo pipefail

readonly NETWORK="${NETWORK:-terngrad}" NET=10.77.0
readonly PREFIX="${NETWORK}-" BRIDGE="${NETWORK}-br"

die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

hosts() {
  [[ "$1" =~ ^[1-9][0-9]?$ ]] || die "the number of hosts N must be 1 to 99, got '$1'"
  seq 0 $(($1 - 1))
}

down() {
  local name
  for name in $(ip netns list | awk -v prefix="^${PREFIX}(br|[0-9]+)$" '$1 ~ prefix { print $1 }'); do
    ip netns delete "${name}"
  done
}

up() {
  local all i host
  all="$(hosts "$1")"
  down
  ip netns add "${BRIDGE}"
  ip -n "${BRIDGE}" link add bridge type bridge
  ip -n "${BRIDGE}" link set bridge up
  for i in ${all}; do
    host="${PREFIX}${i}"
    ip netns add "${host}"
    ip -n "${host}" link add eth0 type veth peer name "port${i}" netns "${BRIDGE}"
    ip -n "${BRIDGE}" link set "port${i}" master bridge up
    ip -n "${host}" address add "${NET}.$((i + 1))/24" dev eth0
    ip -n "${host}" link set eth0 up
    ip -n "${host}" link set lo up
  done
}

# Limits both ends of a cable: sending by the host, and sending by the bridge to the host.
rate() {
  local all i
  all="$(hosts "$1")"
  for i in ${all}; do
    shape "$2" "${PREFIX}${i}" eth0
    shape "$2" "${BRIDGE}" "port${i}"
  done
}

shape() {
  if [[ "$1" == unshaped ]]; then
    tc -n "$2" qdisc del dev "$3" root 2>/dev/null || true # it may have had no limit
  else
    tc -n "$2" qdisc replace dev "$3" root tbf rate "$1" burst 256kb latency 50ms
  fi
}

[[ "${NETWORK}" =~ ^[a-z0-9]+$ ]] || die "NETWORK must consist of a-z and 0-9, got '${NETWORK}'"
command -v ip >/dev/null && command -v tc >/dev/null || die "needs ip and tc (iproute2)"
[[ "${EUID}" -eq 0 ]] || die "needs root to make network namespaces"
case "${1:-}:$#" in
  up:2) up "$2" ;;
  rate:3) rate "$2" "$3" ;;
  cable:3)
    [[ "$2 $3" =~ ^[0-9]+\ (up|down)$ ]] || die "cable needs a host and up or down, got '$2 $3'"
    ip -n "${BRIDGE}" link set "port$2" "$3"
    ;;
  run:[3-9]* | run:[1-9][0-9]*) exec ip netns exec "${PREFIX}$2" "${@:3}" ;;
  down:1) down ;;
  *) die "needs 'up N', 'rate N RATE', 'cable I up|down', 'run I COMMAND...' or 'down'" ;;
esac
