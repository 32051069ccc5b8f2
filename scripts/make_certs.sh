#!/usr/bin/env bash
# Usage: make_certs.sh DIR HOST...
#   make_certs.sh ~/.terngrad/certs ps-one 192.0.2.7 ::1
#        make_certs.sh DIR --revoke HOST...
# Makes the certificates with which processes on several machines identify each other (--tls_ca,
# --tls_cert, --tls_key): DIR/ca.crt, and for each host DIR/HOST.crt and DIR/HOST.key, valid for that
# name or address only. Keeps existing files that are valid for 30 more days. Keep DIR/ca.key secret
# and in DIR: it signs certificates, and any process with a host's certificate can join in its place.
# With --revoke it revokes certificates instead: it adds their serial numbers to DIR/denied.txt,
# which a ps reads again when it changes (--tls_deny), and deletes the files of these hosts.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

AUTHORITY_DAYS=3650
HOST_DAYS=365
SPARE_SECS=$((30 * 24 * 3600))

# Runs openssl and shows its output only if it fails.
quietly() {
  local words
  words="$(openssl "$@" 2>&1 > /dev/null)" || die "openssl $1 failed: ${words//$'\n'/ }"
}

lasts() { openssl x509 -in "$1" -noout -checkend "${SPARE_SECS}" > /dev/null 2>&1; }

# Whether NAME.crt is the certificate of NAME.key.
is_pair() {
  local key
  key="$(openssl pkey -in "$1.key" -pubout 2> /dev/null)" \
    && [[ "$(openssl x509 -in "$1.crt" -noout -pubkey 2> /dev/null)" == "${key}" ]]
}

is_address() { [[ "$1" == *:* || "$1" =~ ^[0-9.]+$ ]]; }

# Whether HOST's files exist and need not be made again.
is_made() {
  local name=hostname
  is_address "$1" && name=ip
  is_pair "${directory}/$1" && lasts "${directory}/$1.crt" \
    && openssl verify -CAfile "${directory}/ca.crt" -purpose sslserver "-verify_${name}" "$1" \
      "${directory}/$1.crt" > /dev/null 2>&1
}

make_key() { quietly genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

make_authority() {
  make_key "${work}/ca.key"
  quietly req -x509 -new -key "${work}/ca.key" -days "${AUTHORITY_DAYS}" -out "${work}/ca.crt" \
    -subj "/CN=TernGrad training" -addext basicConstraints=critical,CA:TRUE,pathlen:0 \
    -addext keyUsage=critical,keyCertSign,cRLSign
  publish ca
}

make_host() { # HOST
  local name=DNS
  is_address "$1" && name=IP
  make_key "${work}/$1.key"
  quietly req -new -key "${work}/$1.key" -subj "/CN=${1:0:64}" -out "${work}/request"
  cat > "${work}/extensions" << END
subjectAltName = ${name}:$1
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
  quietly x509 -req -in "${work}/request" -CA "${directory}/ca.crt" -CAkey "${directory}/ca.key" \
    -set_serial "0x$(openssl rand -hex 16)" -days "${HOST_DAYS}" -extfile "${work}/extensions" \
    -out "${work}/$1.crt"
  publish "$1"
}

# Moves finished files to their place.
publish() {
  chmod 644 "${work}/$1.crt"
  mv "${work}/$1.key" "${work}/$1.crt" "${directory}"
}

# Adds the serial number of HOST's certificate to denied.txt, then deletes certificate and key.
revoke_host() { # HOST
  local serial
  serial="$(openssl x509 -in "${directory}/$1.crt" -noout -serial 2> /dev/null)" \
    || die "there is no certificate of $1 in ${directory}"
  { cat "${directory}/denied.txt" 2> /dev/null || true; } > "${work}/denied.txt"
  echo "${serial#serial=}  # $1, $(date -u +%F)" >> "${work}/denied.txt"
  chmod 644 "${work}/denied.txt"
  mv "${work}/denied.txt" "${directory}"
  rm -f "${directory}/$1.key" "${directory}/$1.crt"
  echo "${directory}/$1.crt: revoked; its serial number is in ${directory}/denied.txt"
}

byte='(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])'
ipv4="${byte}(\\.${byte}){3}"
ipv6='[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*'
name='[0-9.]*[A-Za-z_][A-Za-z0-9._-]*'
(($# >= 1)) && destination="$1" && shift
revoking=
[[ "${1:-}" != --revoke ]] || { revoking=yes && shift; }
(($# >= 1)) || die "needs a folder and at least one host: DIR [--revoke] HOST..."
for host in "$@"; do
  [[ "${host}" =~ ^(${ipv4}|${ipv6}|${name})$ ]] \
    || die "not the name or address of a host: '${host}'"
  [[ "${host}" != ca ]] || die "a host cannot be named 'ca': the authority's files have that name"
done
command -v openssl > /dev/null \
  || die "needs openssl; on Debian or Ubuntu: sudo apt-get install -y openssl"

umask 077
mkdir -p "${destination}" 2> /dev/null || die "cannot make the folder ${destination}"
directory="$(cd "${destination}" && pwd)"
work="$(mktemp -d "${directory}/.making.XXXXXX" 2> /dev/null)" || die "cannot write into ${directory}"
trap 'rm -rf "${work}"' EXIT

if [[ "${revoking}" ]]; then
  for host in "$@"; do
    revoke_host "${host}"
  done
  exit
fi
if [[ ! -e "${directory}/ca.crt" && ! -e "${directory}/ca.key" ]]; then
  make_authority
fi
is_pair "${directory}/ca" \
  || die "${directory}/ca.crt and ca.key are not a pair; remove both, or give another folder"
lasts "${directory}/ca.crt" \
  || die "${directory}/ca.crt has expired or expires soon; remove it and ca.key to make new ones"
for host in "$@"; do
  if is_made "${host}"; then
    echo "${directory}/${host}.crt: kept"
  else
    make_host "${host}"
    echo "${directory}/${host}.crt: made"
  fi
  chmod 600 "${directory}/${host}.key"
done
chmod 600 "${directory}/ca.key"
