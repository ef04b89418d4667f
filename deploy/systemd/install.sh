#!/bin/sh
# Puts the units, the Caddyfile and a run's keys in their places, and starts all but the monitor, which wants a Hub token:
# sudo sh install.sh KEYS. Keys that are in place already stay, so it may be typed again.
set -eu
keys=$(realpath "${1:?expected the folder that holds authority and peers, such as my-run.keys}")
cd "$(dirname "$0")"
if [ ! -f /etc/dalle-lib.env ]; then
    echo "expected the settings in /etc/dalle-lib.env: copy example.env there, and edit it" >&2
    exit 2
fi
install -D -m 644 dalle-lib.conf /etc/sysusers.d/dalle-lib.conf
systemd-sysusers
cmp -s ../Caddyfile /etc/caddy/Caddyfile || install --backup=numbered -D -m 644 ../Caddyfile /etc/caddy/Caddyfile
install -D -m 644 caddy.service.d/dalle-lib.conf /etc/systemd/system/caddy.service.d/dalle-lib.conf
install -m 644 dalle-lib-authority.service dalle-lib-first-peer.service dalle-lib-monitor.service /etc/systemd/system/
mkdir -p /var/lib/dalle-lib "$keys/monitor" # which keys of before the monitor lack
for part in authority peers monitor; do
    [ -e "/var/lib/dalle-lib/$part" ] || mv "$keys/$part" /var/lib/dalle-lib/
done
chown -R dalle-authority: /var/lib/dalle-lib/authority
chown -R dalle-peer: /var/lib/dalle-lib/peers
chown -R dalle-monitor: /var/lib/dalle-lib/monitor
systemctl daemon-reload
systemctl restart caddy
systemctl enable --now dalle-lib-authority dalle-lib-first-peer
