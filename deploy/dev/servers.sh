# shellcheck shell=bash
# What deploy/dev/up and deploy/dev/down both know of the servers. To be sourced in the root of the
# repository.
#
# A server is called rabbitmq or mysql; these are also its folder under .run and its compose service.
# The folder holds
#   started   "docker PORT" or "private PORT": up started this server, and how
#   *.pid     the private server's processes
#   ready     the private server's data has been in use; without it they are half built

root=$PWD
run=$root/.run
PATH=$PATH:/usr/sbin:/sbin

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# enter makes .run, and keeps a second up or down waiting until this one has ended. Servers that are
# started close descriptor 9, or they would hold the lock.
enter() {
  mkdir -p "$run" 2>/dev/null || true
  [ -w "$run" ] || die "cannot write to $run as $(id -un)"
  exec 9>"$run/lock"
  command -v flock >/dev/null || return 0
  flock --wait 600 9 || die "another up or down has held $run/lock for ten minutes"
}

# title SERVER, as people call it.
title() {
  case $1 in
    rabbitmq) echo RabbitMQ ;;
    mysql) echo MySQL ;;
  esac
}

# variable SERVER is the one that names the server.
variable() {
  case $1 in
    rabbitmq) echo LAPSE_AMQP_URL ;;
    mysql) echo LAPSE_MYSQL_DSN ;;
  esac
}

# address SERVER PORT, with the login that a private server, a container and a new installation have.
address() {
  case $1 in
    rabbitmq) echo "amqp://guest:guest@127.0.0.1:$2/" ;;
    mysql) echo "root@tcp(127.0.0.1:$2)/" ;;
  esac
}

# started SERVER sets how and port from the record, both empty without one.
# shellcheck disable=SC2034 # they are for the caller
started() {
  how='' port=''
  if [ -e "$run/$1/started" ]; then
    read -r how port <"$run/$1/started" || true
  fi
}

# pid SERVER PROCESS prints the process's id while it runs. Its environment tells it from one that got
# the number of a dead one.
pid() {
  local id=''
  if [ -e "$run/$1/$2.pid" ]; then
    read -r id <"$run/$1/$2.pid" || true
  fi
  if [ -n "$id" ] && grep -zqxF "LAPSE_DEV_SERVER=$run/$1" "/proc/$id/environ" 2>/dev/null; then
    echo "$id"
  fi
}

# processes SERVER, in the order of stopping: RabbitMQ's node ends the script that started it.
processes() {
  case $1 in
    rabbitmq) echo node server epmd ;;
    mysql) echo server ;;
  esac
}

# alive SERVER: does its private instance run? (epmd alone, RabbitMQ's name server, is none.)
alive() {
  local process
  for process in $(processes "$1"); do
    if [ "$process" != epmd ] && [ -n "$(pid "$1" "$process")" ]; then
      return 0
    fi
  done
  return 1
}

# stop SERVER ends the private instance's processes.
stop() {
  local process id tries
  for process in $(processes "$1"); do
    id=$(pid "$1" "$process")
    [ -n "$id" ] || continue
    kill -TERM "$id" || continue
    for ((tries = 0; tries < 600; tries++)); do
      [ -n "$(pid "$1" "$process")" ] || break
      sleep 0.1
    done
    if [ "$(pid "$1" "$process")" = "$id" ]; then
      say "$(title "$1")'s process $id did not end within a minute: killed"
      kill -KILL "$id" || true
    fi
  done
}

# compose ARGUMENTS... runs Docker Compose; its standard output is not ours.
compose() {
  docker compose --file "$root/deploy/dev/compose.yaml" "$@" </dev/null >&2 9>&-
}
