# shellcheck shell=bash
# The machines of a training with parameter servers, for run_dist.sh, status_dist.sh, stop_dist.sh.
# Edit these lines, set a variable in the environment, or write settings to your own file:
#   DIST_CONFIG=my_cluster.sh bash scripts/run_dist.sh
# A list is a text with commas or an array: DATA_DIR=('~/a, b' /data). In lists for each worker a
# single entry applies to all workers. '~' in quotes is the home on each host. Run stop_dist.sh before
# you edit. run_dist.sh passes the settings of WORKER_SCRIPT and PS_SCRIPT (GRAD_BITS, MAX_STEPS, ...),
# TERNGRAD_VENV and TERNGRAD_INTERFACE (a network interface, such as eth1) to all hosts.

: "${WORKSPACE:=${REPO}}"       # the repository, at the same path on all hosts
: "${WORKER_SCRIPT:=scripts/run_single_worker_cifarnet.sh}" # in the repository
: "${PS_SCRIPT:=scripts/run_single_ps_cifar10.sh}"

# HOST:PORT of each process. ssh uses these host names, unless all are this machine (localhost,
# 127.0.0.1).
: "${PS_HOSTS:=127.0.0.1:2222}"
: "${WORKER_HOSTS:=127.0.0.1:2224,127.0.0.1:2226}"
: "${WORKER_DEVICES:=0}"        # for each worker: its GPU; for several use an array: ('0,1' '2,3')
: "${DATA_DIR:=~/dataset/cifar10-data}" # for each worker: its records

: "${EXPERIMENT_ID:=$(date +%Y-%m-%d_%H-%M-%S)}" # an earlier run's ID continues from its checkpoint
: "${SSH_CONFIG:=}"             # ssh's configuration (users, ports, keys); empty: its default
: "${CONNECT_SECS:=10}"         # seconds in which a host must answer
: "${STOP_SECS:=90}"            # seconds in which a process must save and end
: "${MAX_RESTARTS:=0}"         # how often each process that is killed is started again
: "${TLS:=auto}"                # auto: between machines; True: always; False: you trust the network
: "${CERTS_DIR:=${HOME}/.terngrad/certs}" # made by make_certs.sh, unless TLS_CA, TLS_CERT and
                                # TLS_KEY (and perhaps TLS_DENY) name files on each host
