# A machine of its own for the examples of one manual: mounts, networks, and somebody to talk to. Sourced by bash below
# `unshare --mount --net --pid --fork --kill-child --mount-proc`.
set -euo pipefail
mount --make-rprivate /
for directory in /run/netns /run/parshall /var/log /opt; do
    mkdir -p "$directory"
    mount -t tmpfs -o mode=755 none "$directory"
done
mkdir -p /var/log/parshall /opt/old/bin
ln -s "$(command -v parshall)" /opt/old/bin/parshall
# Programs replace files of /etc, such as the one of groups.
mount -t tmpfs -o mode=755 none /mnt
cp -a /etc /mnt/etc
mount --bind /mnt/etc /etc
umount --lazy /mnt
ip link set lo up
# Two cables to a host that serves port 443 and takes datagrams of port 53.
ip netns add peer
for number in 0 1; do
    ip link add "eth$number" type veth peer name "eth$number" netns peer
    ip addr add "10.9.$number.1/24" dev "eth$number"
    ip link set "eth$number" up
    ip -n peer addr add "10.9.$number.2/24" dev "eth$number"
    ip -n peer link set "eth$number" up
done
ip -n peer link set lo up
