#!/bin/sh
# A shop in shell on Lapse's HTTP API. Needs curl; ../README.md explains each step.
set -eu

usage() {
  cat >&2 <<'END'
usage:
  shop.sh place              place orders: one JSON object a line on standard input
  shop.sh pay ID REFERENCE   record a payment
  shop.sh show ID            print an order with its timeline
  shop.sh expired ID...      wait until none of the orders is pending, and print those that expired

LAPSE_URL is where the API is, and LAPSE_TOKEN lets in, if lapse serve asks for tokens. What the service
could not do at the moment is tried again for a minute; all of it is safe to do again. Ids with a / ? # or %
in them have to be escaped as in a URL.
END
  exit 1
}

url=${LAPSE_URL:-http://127.0.0.1:8080}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP

# ask METHOD PATH [BODY] leaves the answer in $work/answer. A refusal is printed, and is status 1. The token
# is kept off the command line, which others can read.
ask() {
  printf 'silent\nshow-error\nfail-with-body\nmax-time = 30\nretry = 6\nretry-max-time = 60\nretry-connrefused\n' >"$work/curl"
  [ -z "${LAPSE_TOKEN:-}" ] || printf 'header = "Authorization: Bearer %s"\n' "$LAPSE_TOKEN" >>"$work/curl"
  if [ $# -gt 2 ]; then
    printf '%s' "$3" >"$work/body"
    set -- "$1" "$2" --header 'Content-Type: application/json' --data-binary "@$work/body"
  else
    set -- "$1" "$2"
  fi
  method=$1 path=$2
  shift 2
  if ! curl --config "$work/curl" --request "$method" "$@" --output "$work/answer" "$url$path"; then
    cat "$work/answer" >&2 2>/dev/null || true
    return 1
  fi
}

# field NAME prints a field of the answer that is a word.
field() { sed -n "s/.*\"$1\":\"\\([^\"]*\\)\".*/\\1/p" "$work/answer"; }

place() {
  failed=0
  while read -r order || [ -n "$order" ]; do
    [ -n "$order" ] || continue
    # With an id of its own, an order is the same however often it is sent.
    if ask POST /v1/orders "$order"; then
      sed -n 's/^{"id":"\([^"]*\)".*/placed \1/p' "$work/answer"
    else
      failed=1
    fi
  done
  return $failed
}

expired() {
  for id in "$@"; do
    while :; do
      ask GET "/v1/orders/$id" || return 1
      [ "$(field status)" = pending ] || break
      sleep 1
    done
    [ "$(field status)" != expired ] || echo "expired $id"
  done
}

case "${1:-}:$#" in
  place:1) place ;;
  pay:3)
    ask POST "/v1/orders/$2/pay" "{\"reference\": \"$3\"}"
    echo "paid $2"
    ;;
  show:2)
    ask GET "/v1/orders/$2"
    cat "$work/answer"
    ;;
  expired:*)
    shift
    [ $# -gt 0 ] || usage
    expired "$@"
    ;;
  *) usage ;;
esac
