#!/bin/sh
# Writes the authority's folder from the Space secret AUTHORITY, takes the secret out of the environment, and serves.
set -eu
umask 077
: "${AUTHORITY:?expected the secret AUTHORITY in the settings of this Space: its README says how to make it}"
folder=/tmp/authority
# The disk of a Space that has one.
if [ -w "${DISK:=/data}" ]; then folder=$DISK/authority; fi
mkdir -p "$folder"
printf %s "$AUTHORITY" | base64 -d | tar -xz -C "$folder" --no-same-owner --no-same-permissions
unset AUTHORITY
# Names of users and ids of peers, with spaces between: here nobody can type `dalle-lib auth-server ban`.
for name in ${BANNED:-}; do dalle-lib auth-server ban "$name" --folder "$folder"; done
exec dalle-lib auth-server serve --folder "$folder" --host 0.0.0.0 --port "${PORT:-7860}"
