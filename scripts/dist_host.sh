# shellcheck shell=bash
# dist.sh sends this file to a plain bash on each host, followed by calls of its functions. A process
# has a LABEL for messages and a NAME for its files. A line that begins with ! is a problem.

# NAME: the process; NAME.status: how it ended; NAME.stopping: it must not be started again;
# NAME.begun: size of its log before its first line
STATE="${HOME}/tmp/terngrad_dist"
CERTS="${HOME}/.terngrad/certs"
MOST_IN_A_ROW=5 # runs of less than SHORT_SECS after which a process is left out
SHORT_SECS=30

problem() { echo "!$*"; }

# Replaces a leading ~ by the home.
expand() {
  # shellcheck disable=SC2088
  case "$1" in
    "~" | "~/"*) printf '%s' "${HOME}${1:1}" ;;
    *) printf '%s' "$1" ;;
  esac
}

# Prints when a process started, in ticks since boot; fails if it has ended.
birth() {
  local fields
  fields="$(cat "/proc/$1/stat" 2> /dev/null)" || return 1
  read -ra fields <<< "${fields##*) }" # after the program's name, which may contain anything
  [[ "${fields[0]}" != Z ]] && echo "${fields[19]}"
}

this_boot() { cat /proc/sys/kernel/random/boot_id; }

# Reads pid, born, boot and log from a process's file.
recall() { # NAME
  { read -r pid born boot && read -r log; } 2> /dev/null < "${STATE}/$1"
}

# Whether the started process is alive. Compares start times, because process ids are reused.
runs() { # NAME
  local pid born boot log
  recall "$1" && [[ "${boot}" == "$(this_boot)" && "${born}" == "$(birth "${pid}")" ]]
}

# Waits until the exit status of a process is written.
await_note() { # NAME
  local i
  for ((i = 0; i < 50; ++i)); do
    [[ ! -e "${STATE}/$1.status" ]] || return
    sleep 0.1
  done
}

# Prints whether a process runs or how it ended, with a leading ! if that is a problem.
how() { # NAME
  local pid born boot log status=
  recall "$1" || { echo "!not started"; return; }
  runs "$1" && { echo "running (process ${pid})"; return; }
  await_note "$1"
  { read -r status < "${STATE}/$1.status"; } 2> /dev/null
  case "${status}" in
    "") echo "!ended with unknown status: the host or the process that watched it ended too" ;;
    0) echo "ended with status 0" ;;
    again) echo "!was killed; is started again soon" ;;
    143) echo "ended by SIGTERM" ;;
    129 | 1[3-8]? | 19[0-2]) echo "!ended by SIG$(kill -l "${status}")" ;;
    *) echo "!failed with status ${status}" ;;
  esac
}

# Prints "LABEL: TEXT", as a problem if TEXT is one.
tell() { # LABEL TEXT
  local mark="${2%%[^!]*}"
  echo "${mark}$1: ${2#"${mark}"}"
}

check() { # LABEL NAME WORKSPACE SCRIPT DATA_DIR
  local workspace data pid born boot log
  workspace="$(expand "$3")" data="$(expand "$5")"
  runs "$2" && recall "$2" && problem "$1 already runs (process ${pid}); stop it with stop_dist.sh"
  if ! cd "${workspace}" 2> /dev/null; then
    problem "no such folder: ${workspace}"
  elif [[ ! -f "$4" ]]; then
    problem "no such script: ${workspace}/$4"
  elif [[ "${data}" && ! -d "${data}" ]]; then
    problem "$1: no such folder: ${data}"
  fi
}

# Stores a file that only the user may read. Safe if several hosts share the home and do the same.
receive() ( # FILE CONTENT
  umask 077
  new=
  if ! { mkdir -p "${CERTS}" && new="$(mktemp "${CERTS}/$1.XXXXXX")" \
    && printf '%s\n' "$2" > "${new}" && mv "${new}" "${CERTS}/$1"; } 2> /dev/null; then
    rm -f "${new}"
    problem "cannot write ${CERTS}/$1"
  fi
)

# Writes a process's file, by which it is found and stopped.
note() { # NAME LOG PID
  printf '%s %s %s\n%s\n' "$3" "$(birth "$3" || echo gone)" "$(this_boot)" "$2" > "${STATE}/$1.new" \
    && mv "${STATE}/$1.new" "${STATE}/$1"
}

# Writes how a process ended, or that it is about to be started again.
note_status() { # NAME STATUS
  echo "$2" > "${STATE}/$1.status.new"
  mv "${STATE}/$1.status.new" "${STATE}/$1.status"
}

# Whether a status is that of a process that was killed or crashed, not of one that was asked to end.
was_killed() { [[ "$1" =~ ^(132|134|135|136|137|139)$ ]]; } # STATUS

# Runs a program in its own session, prints its process id, and writes its file and exit status.
# Starts it again if it is killed.
supervise() { # NAME LOG MAX_RESTARTS COMMAND...
  local name="$1" log="$2" left="$3" pid began status short=0 pause is_first=yes
  shift 3
  trap '' HUP INT
  while true; do
    began="${SECONDS}"
    [[ "${is_first}" ]] || tell_start "${log}" again
    setsid "$@" < /dev/null >> "${log}" 2>&1 &
    pid=$!
    if note "${name}" "${log}" "${pid}" 2>&1; then
      [[ ! "${is_first}" ]] || echo "${pid}"
    else # without its file it could not be stopped later
      kill -KILL -- "-${pid}"
      left=0
    fi
    # stop_dist.sh may have looked for it before its file was there.
    if [[ -e "${STATE}/${name}.stopping" ]]; then
      # It may have no group yet.
      until kill -TERM -- "-${pid}" 2> /dev/null || ! birth "${pid}" > /dev/null; do sleep 0.1; done
    fi
    [[ ! "${is_first}" ]] || exec > /dev/null 2>&1
    is_first=
    wait "${pid}"
    status=$?
    [[ ! -e "${STATE}/${name}.stopping" ]] || break # also if that killed it
    was_killed "${status}" && ((left > 0)) || break
    ((SECONDS - began >= SHORT_SECS)) && short=0 || short=$((short + 1))
    if ((short >= MOST_IN_A_ROW)); then
      echo "Killed, and left out after ${short} runs of less than ${SHORT_SECS} s." >> "${log}"
      break
    fi
    pause=$((short < 2 ? 1 : 1 << (short - 1)))
    left=$((left - 1))
    echo "Killed by SIG$(kill -l "${status}"), and started again in ${pause} s." >> "${log}"
    note_status "${name}" "again"
    sleep "${pause}"
    [[ ! -e "${STATE}/${name}.stopping" ]] || break
    rm -f "${STATE}/${name}.status"
  done
  note_status "${name}" "${status}"
}

# Writes a line that parts a run in the log from the one before.
tell_start() { # LOG [again]
  echo "Started${2:+ $2} at $(date '+%Y-%m-%d %H:%M:%S')." >> "$1"
}

start() { # LABEL NAME EXPERIMENT_ID MAX_RESTARTS WORKSPACE SCRIPT [VARIABLE=VALUE...] -- ARGUMENT...
  local label="$1" name="$2" log="${STATE}/$3_$2.log" restarts="$4" script="$6"
  local variables=() arguments=() workspace said pid=
  workspace="$(expand "$5")"
  shift 6
  while [[ "$1" != -- ]]; do
    variables+=("${1%%=*}=$(expand "${1#*=}")")
    shift
  done
  shift
  while (($#)); do
    arguments+=("$(expand "$1")")
    shift
  done
  (umask 077 && mkdir -p "${STATE}" && tell_start "${log}") 2> /dev/null \
    || { problem "${label}: cannot write ${log}"; return; }
  stat -c %s "${log}" > "${STATE}/${name}.begun"
  rm -f "${STATE}/${name}"{,.status,.stopping} # left by an earlier run
  cd "${workspace}" || return
  exec {said}< <(supervise "${name}" "${log}" "${restarts}" env "${variables[@]}" bash "${script}" "${arguments[@]}")
  read -r pid <&"${said}" || problem "${label}: cannot write ${STATE}/${name}"
  exec {said}<&-
  echo "${label}: process ${pid}, ${log}"
}

# Waits until a process has loaded its modules, which its first line tells, or has ended.
await_first_line() { # LABEL NAME DEADLINE SECS
  local pid born boot log begun
  recall "$2" && { read -r begun < "${STATE}/$2.begun"; } 2> /dev/null || return
  while runs "$2" && (($(stat -c %s "${log}") <= begun)); do
    if ((SECONDS >= $3)); then
      echo "$1: has said nothing for $4 s; see status_dist.sh"
      return
    fi
    sleep 0.1
  done
}

# Reports a process that failed right after its start.
settle() { # LABEL NAME
  local pid born boot log text
  recall "$2" && ! runs "$2" || return
  text="$(how "$2")"
  [[ "${text}" != !* ]] || problem "$1 ${text#!}: $(tail -n 1 "${log}")"
}

# Prints after which step a process that is killed has saved nothing; nothing for one that has no
# checkpoints and is not the chief.
unsaved_since() { # LABEL PID
  local folder newest
  folder="$(tr '\0' '\n' 2> /dev/null < "/proc/$2/cmdline" \
    | sed -n '/^--train_dir$/{n;p}; s/^--train_dir=//p' | tail -n 1)"
  newest="$(cd "${folder:-/}" 2> /dev/null && ls \
    | sed -n 's/^model\.ckpt-\([0-9]*\)\.index$/\1/p' | sort -n | tail -n 1)"
  [[ ! "${newest}" && "$1" != "worker 0 "* ]] || echo "; not saved since step ${newest:-0}"
}

show() { # LABEL NAME LINES
  local pid born boot log
  tell "$1" "$(how "$2")"
  recall "$2" && tail -n "$3" "${log}" 2> /dev/null | tr '\r' '\n' | tail -n "$3" | sed 's/^/    /'
}

print_log() { # NAME
  local pid born boot log
  recall "$1" || { echo "it was not started on this host" >&2; return 1; }
  cat "${log}"
}

# Lets processes save and end; kills those that take longer, with their children.
stop() { # SECS [LABEL NAME]...
  local secs="$1" deadline=$((SECONDS + $1)) groups=() i pid born boot log text
  shift
  local processes=("$@")
  for ((i = 0; i < $#; i += 2)); do
    [[ ! -e "${STATE}/${processes[i + 1]}" ]] || : > "${STATE}/${processes[i + 1]}.stopping"
    runs "${processes[i + 1]}" || continue
    recall "${processes[i + 1]}"
    groups[i]="${pid}"
    # A process that just started may have no group yet.
    until kill -TERM -- "-${pid}" 2> /dev/null || ! runs "${processes[i + 1]}"; do sleep 0.1; done
  done
  for ((i = 0; i < $#; i += 2)); do
    text=
    # A group id is not reused while one of its processes lives.
    while [[ "${groups[i]:-}" ]] && kill -0 -- "-${groups[i]}" 2> /dev/null; do
      if ((SECONDS >= deadline + 10)); then
        text="still runs after SIGKILL"
        problem "${processes[i]} ${text}"
        break
      elif ((SECONDS >= deadline)); then
        [[ "${text}" ]] || text="killed because it did not end within ${secs} s$(
          unsaved_since "${processes[i]}" "${groups[i]}")"
        kill -KILL -- "-${groups[i]}"
      fi
      sleep 0.1
    done
    text="${text:-$(how "${processes[i + 1]}" | tr -d '!')}"
    [[ "${text}" != "killed because "* && "${text}" != "not started" ]] || printf '!'
    echo "${processes[i]}: ${text}"
  done
}
