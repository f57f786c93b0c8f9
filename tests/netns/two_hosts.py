#!/usr/bin/env python3
"""Four ranks on two "hosts": network namespaces joined by a third that forwards, until it does not.

usage: two_hosts.py BUILD_FOLDER [--counts FILE]
Needs root and ip(8); says skipped otherwise. Each rank runs netns_rank, which checks the collectives over the network, loses
the other host at its deadline and goes on with its own.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import threading

TIMEOUT_S = 60
PORT = 7117  # free: the namespace is new


def ip(*args):
    subprocess.run(["ip", *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=TIMEOUT_S)


class Network:
    """Two hosts and a router between them; removed at the end with all that is in it."""

    def __init__(self):
        self.router = f"cadre-r{os.getpid()}"
        self.hosts = [f"cadre-h{os.getpid()}-{i}" for i in range(2)]

    def __enter__(self):
        try:
            for name in [self.router, *self.hosts]:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            for i, host in enumerate(self.hosts):
                ip("link", "add", "up0", "netns", host, "type", "veth", "peer", "name", f"down{i}", "netns", self.router)
                ip("-n", host, "addr", "add", f"10.77.{i}.1/24", "dev", "up0")
                ip("-n", host, "link", "set", "up0", "up")
                ip("-n", self.router, "addr", "add", f"10.77.{i}.254/24", "dev", f"down{i}")
                ip("-n", self.router, "link", "set", f"down{i}", "up")
                ip("-n", host, "route", "add", "default", "via", f"10.77.{i}.254")
            self.forward(True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in [self.router, *self.hosts]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, timeout=TIMEOUT_S)

    def forward(self, on):
        """Without forwarding packets between the hosts vanish; nobody is told."""
        ip("netns", "exec", self.router, "sh", "-c", f"echo {int(on)} > /proc/sys/net/ipv4/ip_forward")


def run_ranks(network, program):
    """Problems found, as text; empty when all is well."""
    ranks = []
    for rank in range(4):
        env = dict(os.environ, CADRE_RANK=str(rank), CADRE_WORLD_SIZE="4", CADRE_STORE=f"10.77.0.1:{PORT}", UCX_NET_DEVICES="up0")
        command = ["ip", "netns", "exec", network.hosts[rank // 2], program]
        ranks.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    # ip netns exec becomes the program, so this ends the ranks themselves.
    watchdog = threading.Timer(TIMEOUT_S, lambda: [r.kill() for r in ranks])
    watchdog.start()
    try:
        firsts = [r.stdout.readline() for r in ranks]
        if all(line == "ready\n" for line in firsts):
            network.forward(False)
        texts = [first + r.stdout.read() for first, r in zip(firsts, ranks)]
        codes = [r.wait() for r in ranks]
    finally:
        watchdog.cancel()
        for r in ranks:
            r.kill()
    return "".join(f"rank {i} ended with {codes[i]}: {texts[i]}" for i in range(4) if codes[i] != 0 or texts[i] != "ready\ndone\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--counts")
    args = parser.parse_args()
    passed, failed, skipped = 0, 0, 0
    network = Network()
    try:
        if os.geteuid() != 0 or not shutil.which("ip"):
            raise PermissionError("needs root and ip(8)")
        with network:
            problems = run_ranks(network, os.path.join(os.path.abspath(args.build), "netns_rank"))
        failed, passed = int(bool(problems)), int(not problems)
        print(problems, end="")
    except (PermissionError, subprocess.CalledProcessError) as error:
        # Containers often are root without the right to make namespaces.
        detail = error.stderr.decode().strip() if isinstance(error, subprocess.CalledProcessError) else error
        print(f"two hosts: skipped, {detail}")
        skipped = 1
    print(f"two hosts: {passed} passed, {failed} failed, {skipped} skipped")
    if not args.counts:
        return failed
    totals = [0, 0, 0]
    if os.path.exists(args.counts):
        with open(args.counts) as file:
            totals = json.load(file)
    with open(args.counts, "w") as file:
        json.dump([totals[0] + passed, totals[1] + failed, totals[2] + skipped], file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
