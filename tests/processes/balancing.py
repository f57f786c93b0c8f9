#!/usr/bin/env python3
"""`cadre launch -n 4 serve --enable-eplb`: experts that move between processes, the record of their load, and both over HTTP.

usage: balancing.py BUILD_FOLDER [--counts FILE]
"""
import json
import os
import re
import subprocess
import sys
import tempfile

from serving import DEMO, PROMPTS, Processes, Server, Stream, ended, get, request, run_tests, wait_for

RANKS = ["-dp", "4", "-ep", "--enable-eplb", "--ep-num-redundant-experts", "8"]
TOKENS = 60


def post(server, path, body=None):
    status, text = request(server.port, "POST", path, body)
    assert status == 200, text
    return text


def placement_of(server):
    status, text = get(server.port, "/expert_placement")
    assert status == 200, text
    return json.loads(text)


def answers(server):
    streams = [Stream(server.port, prompt, TOKENS) for prompt in PROMPTS]
    ended(streams)
    for stream in streams:
        assert stream.is_done and stream.error is None, stream.error
    return [stream.text for stream in streams]


def experts_move_between_processes_and_answers_stay(cadre):
    with Processes() as processes, tempfile.TemporaryDirectory() as folder:
        expected = answers(Server(processes, cadre, ranks=1))
        server = Server(processes, cadre, *RANKS, "--eplb-rebalance-num-iterations", "20", "--eplb-window", "20")
        post(server, "/expert_distribution/start", json.dumps({"mode": "per_pass"}))
        assert answers(server) == expected
        assert answers(server) == expected
        post(server, "/expert_distribution/stop")
        moved = placement_of(server)
        assert moved["generation"] > 0 and moved["moved_bytes"] > 0 and moved["plans_refused"] == 0, moved

        # Every row once, on whatever rank, in every sparse layer.
        record = json.loads(get(server.port, "/expert_distribution")[1])
        rows = sum(record["rows_of_rank"])
        assert rows > 2 * len(PROMPTS) * (TOKENS - 1) and min(record["rows_of_rank"]) > 0, record["rows_of_rank"]
        with open(os.path.join(DEMO, "config.json")) as file:
            top_k = json.load(file)["num_experts_per_tok"]
        assert all(sum(layer) == top_k * rows for layer in record["logical_count"]), record["logical_count"]

        text = get(server.port, "/metrics")[1]
        value = {line.rsplit(" ", 1)[0].split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and line[0] != "#"}
        assert value["cadre:eplb_rebalances_total"] > 0 and value["cadre:eplb_moved_bytes_total"] == moved["moved_bytes"], moved
        assert 0 < value["cadre:expert_balancedness"] <= 1, value["cadre:expert_balancedness"]
        for rank in range(4):
            assert re.search(r'^cadre:expert_imbalance_seconds_total\{.*rank="%d"\} ' % rank, text, re.M), rank

        # What was recorded is read by the tool, and what that plans is where another server begins.
        load, plan = os.path.join(folder, "load.jsonl"), os.path.join(folder, "plan.json")
        with open(load, "w") as file:
            file.write(post(server, "/expert_distribution/dump"))
        for command in (["simulate", load, "--interval", "20", "--window", "20"], ["compare", load], ["plan", load, "--out", plan]):
            subprocess.run([cadre, "eplb", command[0], command[1], "--ranks", "4", "--redundant", "8", *command[2:]], check=True, stdout=subprocess.DEVNULL)
        server.process.terminate()
        assert server.process.wait(60) == 0, "".join(server.log)
        second = Server(processes, cadre, *RANKS, "--eplb-rebalance-num-iterations", "0", "--init-expert-location", plan)
        with open(plan) as file:
            assert placement_of(second)["layers"] == json.load(file)["layers"]
        assert answers(second) == expected


def a_placement_set_by_hand_is_reached_and_a_bad_one_changes_nothing(cadre):
    with Processes() as processes:
        one = Server(processes, cadre, ranks=1)
        expected = answers(one)
        for method in ("GET", "PUT"):  # a server whose experts stay says how to have one where they move
            status, text = request(one.port, method, "/expert_placement", "{}" if method == "PUT" else None)
            assert status == 400 and "--enable-eplb" in text, text
        server = Server(processes, cadre, *RANKS, "--eplb-rebalance-num-iterations", "0")
        first = placement_of(server)
        for layer in first["layers"]:
            layer["slot_to_expert"].reverse()
        wanted = {key: first[key] for key in ("format", "version", "num_experts", "ranks", "slots_per_rank", "layers")}
        assert request(server.port, "PUT", "/expert_placement", json.dumps(wanted))[0] == 200
        wait_for("the placement", lambda: answers(server) == expected and placement_of(server)["layers"] == wanted["layers"])
        for bad in ("", "{", json.dumps({**wanted, "layers": wanted["layers"][1:]}), json.dumps({**wanted, "num_experts": 3})):
            status, text = request(server.port, "PUT", "/expert_placement", bad)
            assert status == 400 and "expected" in text, text
        for path, body in (("start", '{"mode": "all"}'), ("start", '{"sample_every": 2}'), ("dump", None)):
            assert request(server.port, "POST", "/expert_distribution/" + path, body)[0] == 400
        assert answers(server) == expected and placement_of(server)["layers"] == wanted["layers"]


if __name__ == "__main__":
    sys.exit(run_tests("balancing", [experts_move_between_processes_and_answers_stay, a_placement_set_by_hand_is_reached_and_a_bad_one_changes_nothing]))
