#!/usr/bin/env bash
# Builds the image, trains with docker-compose.yml, checks that Prometheus has the curves, scales to four rollout
# servers while it runs, and takes everything down again. Needs a docker daemon and docker-compose (1.29 or v2).
#   deploy/compose_smoke.sh
# MILLRACE_CONFIG and MILLRACE_SET choose another run (default: the tiny quickstart); KEEP=1 leaves it up.
set -euo pipefail
cd "$(dirname "$0")/.."
export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-millrace-smoke}
export MILLRACE_CONFIG=${MILLRACE_CONFIG:-/opt/millrace/configs/quickstart-tiny.toml}
export MILLRACE_SET=${MILLRACE_SET:-run.steps=5000}   # does not end before it is taken down
export PROMETHEUS_PORT=${PROMETHEUS_PORT:-19090}
say() { printf 'compose: %s\n' "$*"; }
die() { printf 'compose: %s\n' "$*" >&2; exit 1; }

docker info > /dev/null 2>&1 || die "no docker daemon answers (docker info)"
docker buildx version > /dev/null 2>&1 || export DOCKER_BUILDKIT=0   # else the client asks for what is not there
if command -v docker-compose > /dev/null; then
  compose=(docker-compose)
elif docker compose version > /dev/null 2>&1; then
  compose=(docker compose)
else
  die "neither docker-compose nor docker compose is installed"
fi

# The base image, made from Debian's packages where it cannot be pulled.
base=debian:bookworm-slim
if ! docker image inspect $base > /dev/null 2>&1 && ! docker pull -q $base; then
  command -v debootstrap > /dev/null || die "cannot pull $base, and there is no debootstrap to make it"
  say "making $base with debootstrap"
  root=$(mktemp -d)
  debootstrap --variant=minbase bookworm "$root" > /dev/null
  # Certificates that this machine trusts beyond Debian's (a company's mirror), for the downloads within the build.
  if ls /usr/local/share/ca-certificates/*.crt > /dev/null 2>&1; then
    mkdir -p "$root/usr/local/share/ca-certificates"
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
  fi
  tar -C "$root" -c . | docker import - $base > /dev/null
  rm -rf "$root"
fi

say "building the image"
"${compose[@]}" build -q init || die "the image did not build"

down() {
  status=$?
  if [ $status != 0 ]; then "${compose[@]}" logs --tail=40 || true; fi
  [ -n "${KEEP:-}" ] || "${compose[@]}" down -v --remove-orphans > /dev/null 2>&1 || true
  exit $status
}
trap down EXIT

# prometheus PATH: the body of a GET of Prometheus's API.
prometheus() { docker exec "$("${compose[@]}" ps -q prometheus)" http-get 9090 "/api/v1/$1"; }
encode() { sed -e 's/"/%22/g' -e 's/{/%7B/g' -e 's/}/%7D/g' -e 's/=/%3D/g' -e 's/>/%3E/g' <<< "$1"; }
# value QUERY: the first value of an instant query, empty when there is none.
value() { prometheus "query?query=$(encode "$1")" 2> /dev/null | sed -n 's/.*"value":\[[^,]*,"\([^"]*\)"\].*/\1/p' | head -n 1; }
# await SECONDS QUERY MINIMUM: until the value of QUERY is at least MINIMUM.
await() {
  local until=$((SECONDS + $1)) now=
  while [ $SECONDS -lt $until ]; do
    now=$(value "$2" || true)
    if [ -n "$now" ] && awk "BEGIN { exit !($now >= $3) }"; then
      say "$2 is $now"
      return 0
    fi
    sleep 1
  done
  die "waited $1 s for $2 to be $3 or more; last seen: ${now:-nothing}"
}

say "starting"
"${compose[@]}" up -d
await 600 'millrace_learner_step' 2
await 30 'sum(millrace_rollout_groups_leased_total)' 1
await 30 'count(up{job="rollout"}==1)' 2

say "scaling to four rollout servers"
"${compose[@]}" up -d --no-recreate --scale rollout=4
await 120 'count(up{job="rollout"}==1)' 4
await 120 'count(millrace_rollout_active_version>=0)' 4
step=$(value millrace_learner_step)
await 300 'millrace_learner_step' $((${step%.*} + 1))

say "reward by step, from Prometheus:"
now=$(date +%s)
prometheus "query_range?query=millrace_learner_reward_mean&start=$((now - 600))&end=$now&step=5"
echo
say "passed"
