#!/usr/bin/env python3
"""`cadre launch -n 4 serve` while it loses ranks: answers as one rank, then a killed rank, a stopped one, and SIGTERM.

usage: lost_ranks.py BUILD_FOLDER [--counts FILE]
"""
import os
import signal
import sys
import time

from serving import PROMPTS, Processes, Server, Stream, ended, get, run_tests, wait_for

RANKS = ["-dp", "4", "-ep"]


def streams_under_way(server, max_tokens=900):
    streams = [Stream(server.port, prompt, max_tokens) for prompt in PROMPTS]
    for stream in streams:
        wait_for("a first token", lambda s=stream: s.num_events > 2 or s.ended_at)
        assert stream.error is None, stream.error
    return streams


def answers_are_those_of_one_rank(cadre):
    with Processes() as processes:
        one = Server(processes, cadre, ranks=1)
        expected = [Stream(one.port, prompt, 40) for prompt in PROMPTS]
        ended(expected)
        for flags in (RANKS, [*RANKS, "--dp-sync", "waves"], ["--tp-size", "4", "--dp-size", "2", "--enable-dp-attention", "--ep-size", "4"]):
            server = Server(processes, cadre, *flags)
            got = [Stream(server.port, prompt, 40) for prompt in PROMPTS]
            ended(got)
            for a, b in zip(got, expected):
                assert a.is_done and a.error is None and a.text == b.text, (flags, a.error, a.text, b.text)
            server.process.terminate()
            assert server.process.wait(60) == 0, "".join(server.log)


def a_killed_rank_ends_all_within_a_second(cadre):
    for victim in (2, 0):
        with Processes() as processes:
            server = Server(processes, cadre, *RANKS)
            streams = streams_under_way(server)
            killed_at = time.monotonic()
            os.kill(server.pids[victim], signal.SIGKILL)
            ended(streams)
            assert server.process.wait(30) == 128 + signal.SIGKILL, "".join(server.log)
            for stream in streams:
                assert stream.error and not stream.is_done, stream.text
                # Where the front itself is killed, the connection says so.
                assert "connection" in stream.error if victim == 0 else f"rank {victim}" in stream.error, stream.error
                assert stream.ended_at - killed_at < 1.0, f"{stream.ended_at - killed_at} s"


def a_stopped_rank_ends_all_at_the_deadline(cadre):
    with Processes() as processes:
        server = Server(processes, cadre, *RANKS, "--step-timeout", "1")
        streams = streams_under_way(server)
        os.kill(server.pids[1], signal.SIGSTOP)
        ended(streams)
        for stream in streams:
            assert stream.error and "did not come within 1000000 us" in stream.error and "group " in stream.error and "step " in stream.error, stream.error
        status, text = get(server.port, "/health")
        assert status == 503, text
        refused = Stream(server.port, "more", 4)
        ended([refused])
        assert refused.error and not refused.is_done
        os.kill(server.pids[1], signal.SIGCONT)
        server.process.terminate()
        server.process.wait(60)


def sigterm_lets_running_answers_end(cadre):
    with Processes() as processes:
        server = Server(processes, cadre, *RANKS)
        streams = streams_under_way(server, max_tokens=200)
        server.process.terminate()
        ended(streams)
        for stream in streams:
            assert stream.is_done and stream.error is None, stream.error
        assert server.process.wait(60) == 0, "".join(server.log)


if __name__ == "__main__":
    sys.exit(run_tests("lost ranks", [answers_are_those_of_one_rank, a_killed_rank_ends_all_within_a_second, a_stopped_rank_ends_all_at_the_deadline, sigterm_lets_running_answers_end]))
