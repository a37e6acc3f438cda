#!/bin/busybox sh
# The emulated machine's first process. Loads soft-RoCE, makes the cards rx1, rx2 and rx3 on three
# interfaces that a bridge joins, and runs run.sh of the writable share on the host's own files,
# which it sees read-only. The last line says how that ended.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules.order); do
    insmod "/modules/$module" || echo "cannot load $module"
done
mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=262144,ro host /host
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 work /host/mnt
mount -t proc proc /host/proc
mount -t sysfs sys /host/sys
mkdir -p /dev/shm
mount --bind /dev /host/dev
mount -t tmpfs tmpfs /host/run
mount -t tmpfs tmpfs /host/dev/shm
ulimit -l unlimited

on_host() { chroot /host "$@"; }
ip() { on_host /usr/sbin/ip "$@"; }
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
# Packets between the interfaces' addresses cross the bridge, though all are of one machine: rules
# that know where a packet goes out come before the one that keeps it inside.
ip rule add pref 1000 lookup local
ip rule del pref 0
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
for i in 1 2 3; do
    ip link add "e$i" type veth peer name "p$i"
    ip link set "p$i" master br0 up
    ip link set "e$i" address "02:00:00:00:00:0$i"
    ip addr add "10.8.0.$i/32" dev "e$i"
    ip link set "e$i" up
    echo 1 >"/proc/sys/net/ipv4/conf/e$i/accept_local"
    echo 0 >"/proc/sys/net/ipv4/conf/e$i/rp_filter"
    ip route add 10.8.0.0/24 dev "e$i" src "10.8.0.$i" table "$((100 + i))"
    ip rule add pref "$((10 + i))" oif "e$i" lookup "$((100 + i))"
    ip rule add pref "$((20 + i))" iif lo from "10.8.0.$i" to 10.8.0.0/24 lookup "$((100 + i))"
done
for i in 1 2 3; do
    for j in 1 2 3; do
        [ "$i" = "$j" ] ||
            ip neigh replace "10.8.0.$j" lladdr "02:00:00:00:00:0$j" dev "e$i" nud permanent
    done
    on_host /usr/bin/rdma link add "rx$i" type rxe netdev "e$i"
done
echo "guest: Linux $(uname -r), $(nproc) emulated processors, up $(cut -d' ' -f1 /proc/uptime) s"
on_host /bin/sh /mnt/run.sh
echo "guest ended: $?"
poweroff -f
