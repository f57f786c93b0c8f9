#!/usr/bin/env python3
"""Four ranks on two "hosts": network namespaces joined by a third that forwards, until it does not.

usage: two_hosts.py BUILD_FOLDER [--counts FILE]
Needs root and ip(8); says skipped otherwise.
- Each rank runs netns_rank, which checks the collectives over the network, loses the other host at its deadline and goes on
  with its own.
- `cadre generate` over layouts that cross the hosts answers as one rank.
- `cadre serve` loses the other host in the middle of answers: each ends with a sentence at the deadline.
"""
import argparse
import os
import shutil
import subprocess
import sys
import threading
import traceback

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "processes"))
from serving import Processes, Stream, add_counts, get, port_of, wait_for  # noqa: E402

DEMO = os.path.join(SOURCE, "models", "demo")
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


def collectives_and_a_cut_network(network, build):
    ranks = []
    for rank in range(4):
        env = dict(os.environ, CADRE_RANK=str(rank), CADRE_WORLD_SIZE="4", CADRE_STORE=f"10.77.0.1:{PORT}", UCX_NET_DEVICES="up0")
        command = ["ip", "netns", "exec", network.hosts[rank // 2], os.path.join(build, "netns_rank")]
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
    for i in range(4):
        assert codes[i] == 0 and texts[i] == "ready\ndone\n", f"rank {i} ended with {codes[i]}: {texts[i]}"


def start_ranks(network, processes, command):
    """The four ranks of a command, found by torchrun's variables; one (process, output lines) each."""
    ranks = []
    for rank in range(4):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank % 2), WORLD_SIZE="4", MASTER_ADDR="10.77.0.1", MASTER_PORT=str(PORT), UCX_NET_DEVICES="up0")
        ranks.append(processes.start(["ip", "netns", "exec", network.hosts[rank // 2], *command], env))
    return ranks


def two_hosts_answer_as_one_rank(network, build):
    command = [os.path.join(build, "cadre"), "generate", DEMO, "--temperature", "0", "--max-tokens", "16", "--json"]
    for prompt in ["Once upon a time", "Es war einmal", "def add(a, b):", "The quality of", "Il y avait"]:
        command += ["--prompt", prompt]
    answers = lambda text: [line for line in text.splitlines() if line.startswith("{")]
    one = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    assert len(answers(one.stdout)) == 5, one.stderr
    # Experts over all ranks; attention split within a host; attention split across hosts.
    for flags in (["-dp", "4", "-ep"], ["--tp-size", "4", "--dp-size", "2", "--enable-dp-attention", "--ep-size", "4", "--moe-a2a-backend", "deepep"],
                  ["--tp-size", "4", "--ep-size", "4", "--dp-sync", "waves"]):
        with Processes() as processes:
            ranks = start_ranks(network, processes, [*command, *flags])
            codes = [process.wait(TIMEOUT_S) for process, _ in ranks]
            assert codes == [0, 0, 0, 0], (flags, codes, processes.text())
            wait_for("all output", lambda: len(answers("".join(ranks[0][1]))) == 5)
            assert answers("".join(ranks[0][1])) == answers(one.stdout), (flags, processes.text())


def a_cut_network_ends_every_answer(network, build):
    with Processes() as processes:
        ranks = start_ranks(network, processes, [os.path.join(build, "cadre"), "serve", DEMO, "--port", "0", "--step-timeout", "2", "-dp", "4", "-ep"])
        port = port_of(ranks[0][1], ranks[0][0])
        client, said = processes.start(["ip", "netns", "exec", network.hosts[0], sys.executable, os.path.abspath(__file__), "--client", str(port)])
        wait_for("answers under way", lambda: "under way\n" in said, client)
        network.forward(False)
        assert client.wait(TIMEOUT_S) == 0, "".join(said) + processes.text()


def ask_until_cut(port):
    """The client, on the first host."""
    streams = [Stream(port, prompt, 1000) for prompt in ["One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight"]]
    for stream in streams:
        wait_for("a first token", lambda s=stream: s.num_events > 2 or s.ended_at)
    print("under way", flush=True)
    for stream in streams:
        stream.join(TIMEOUT_S)
        assert stream.ended_at, "an answer hangs"
        assert not stream.is_done and stream.error and "expected rank" in stream.error, (stream.error, stream.text)
    assert get(port, "/health")[0] == 503


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", nargs="?")
    parser.add_argument("--counts")
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        return ask_until_cut(args.client)
    tests = [collectives_and_a_cut_network, two_hosts_answer_as_one_rank, a_cut_network_ends_every_answer]
    passed, failed, skipped = 0, 0, 0
    try:
        if os.geteuid() != 0 or not shutil.which("ip"):
            raise PermissionError("needs root and ip(8)")
        for test in tests:
            with Network() as network:
                try:
                    test(network, os.path.abspath(args.build))
                    passed += 1
                except Exception:  # any failure counts and is shown; the other tests run
                    failed += 1
                    print(f"{test.__name__}: failed\n{traceback.format_exc()}")
    except (PermissionError, subprocess.CalledProcessError) as error:
        # Containers often are root without the right to make namespaces.
        detail = error.stderr.decode().strip() if isinstance(error, subprocess.CalledProcessError) else error
        print(f"two hosts: skipped, {detail}")
        skipped = len(tests)
    print(f"two hosts: {passed} passed, {failed} failed, {skipped} skipped")
    if args.counts:
        add_counts(args.counts, passed, failed, skipped)
        return 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
