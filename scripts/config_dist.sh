# shellcheck shell=bash
# The machines of a training with parameter servers, for run_dist.sh, status_dist.sh, stop_dist.sh.
# Edit these lines, or give a setting in the environment, or write settings into a file of your own:
#   DIST_CONFIG=my_cluster.sh bash scripts/run_dist.sh
# A list is a text with commas, or an array, DATA_DIR=('~/a, b' /data). Where it is one entry for each
# worker, a single entry is for all. '~' in quotes is each host's own home. Stop before you edit.
# The settings of WORKER_SCRIPT and PS_SCRIPT (GRAD_BITS, MAX_STEPS, ...), and TERNGRAD_VENV, are handed
# on to all hosts.

: "${WORKSPACE:=${REPO}}"       # the repository, at the same path on all hosts
: "${WORKER_SCRIPT:=scripts/run_single_worker_cifarnet.sh}" # in it
: "${PS_SCRIPT:=scripts/run_single_ps_cifar10.sh}"

# HOST:PORT of each process. Hosts are reached by ssh under these names, or all are this machine
# (localhost, 127.0.0.1).
: "${PS_HOSTS:=127.0.0.1:2222}"
: "${WORKER_HOSTS:=127.0.0.1:2224,127.0.0.1:2226}"
: "${WORKER_DEVICES:=0}"        # for each worker: its GPU; several in an array, ('0,1' '2,3')
: "${DATA_DIR:=~/dataset/cifar10-data}" # for each worker: its records

: "${EXPERIMENT_ID:=$(date +%Y-%m-%d_%H-%M-%S)}" # of an earlier run: goes on from its checkpoint
: "${SSH_CONFIG:=}"             # ssh's configuration (users, ports, keys); empty: its default
: "${CONNECT_SECS:=10}"         # how long a host may take to answer
: "${STOP_SECS:=90}"            # how long a process may take to save and end
: "${TLS:=auto}"                # auto: between machines; True; False: in a network you trust
: "${CERTS_DIR:=${HOME}/.terngrad/certs}" # made by make_certs.sh, unless TLS_CA, TLS_CERT and
                                # TLS_KEY name files that are on each host
