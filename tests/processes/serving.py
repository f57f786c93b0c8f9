"""Ranks that serve, and clients of them: what the tests of process ranks share. Standard library only."""
import argparse
import http.client
import json
import os
import re
import subprocess
import threading
import time
import traceback

TIMEOUT_S = 60
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(SOURCE, "models", "demo")
PROMPTS = ["Once upon a time", "Es war einmal", "def add(a, b):", "Il y avait une fois", "The quality of", "Habia una vez"]


def add_counts(path, passed, failed, skipped):
    """Adds to a file of counts as tools/run_tests.py --carry does."""
    totals = [0, 0, 0]
    try:
        with open(path) as file:
            totals = json.load(file)
    except FileNotFoundError:
        pass
    with open(path, "w") as file:
        json.dump([totals[0] + passed, totals[1] + failed, totals[2] + skipped], file)


class Processes:
    """Started programs whose output is read all the time; whatever still runs at the end is killed."""

    def __init__(self):
        self.started, self.logs = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, command, env=None):
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)
        reader.start()
        self.started.append(process)
        self.logs.append(lines)
        return process, lines

    def text(self):
        return "".join("".join(lines) for lines in self.logs)


def wait_for(what, found, process=None):
    """Polls found() until it is true."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        if process is not None and process.poll() is not None and not found():
            raise AssertionError(f"ended with {process.returncode} before {what}")
        time.sleep(0.01)
    raise AssertionError(f"not within {TIMEOUT_S} s: {what}")


def port_of(lines, process):
    def found():
        match = re.search(r"ready in .* http://[0-9.]+:(\d+)", "".join(lines))
        return match and int(match.group(1))

    return wait_for("the server is ready", found, process)


class Stream(threading.Thread):
    """One streamed completion: its text, its error event or None, and when it ended (time.monotonic())."""

    def __init__(self, port, prompt, max_tokens, **more):
        super().__init__(daemon=True)
        self.port, self.body = port, {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True, **more}
        self.text, self.error, self.is_done, self.num_events, self.ended_at = "", None, False, 0, None
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", "/v1/completions", json.dumps({"model": model_name(self.port), **self.body}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                self.error = response.read().decode()
                return
            for line in response:
                line = line.decode().strip()
                if line == "data: [DONE]":
                    self.is_done = True
                elif line.startswith("data: "):
                    self.take(json.loads(line[len("data: "):]))
            if not self.is_done and self.error is None:
                self.error = "connection: closed in the middle of the answer"
        except (OSError, http.client.HTTPException) as error:
            self.error = f"connection: {error!r}"
        finally:
            self.ended_at = time.monotonic()
            connection.close()

    def take(self, event):
        self.num_events += 1
        if "error" in event:
            self.error = event["error"]["message"]
        else:
            self.text += event["choices"][0]["text"]


class Server:
    """A launched deployment and the process of each of its ranks."""

    def __init__(self, processes, cadre, *flags, ranks=4):
        command = [cadre, "launch", "-n", str(ranks), "serve"] if ranks > 1 else [cadre, "serve"]
        self.process, self.log = processes.start([*command, DEMO, "--port", "0", *flags])
        self.port = port_of(self.log, self.process)
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as children:
            self.pids = list(map(int, children.read().split()))  # in the order in which they were started


def ended(streams):
    for stream in streams:
        stream.join(60)
        assert stream.ended_at, "a request hangs"


def request(port, method, path, body=None):
    """Status and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def get(port, path):
    return request(port, "GET", path)


def run_tests(name, tests):
    """Runs test(path of the program) for each, as `NAME.py BUILD_FOLDER [--counts FILE]`; the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--counts")
    args = parser.parse_args()
    cadre = os.path.join(os.path.abspath(args.build), "cadre")
    failed = 0
    for test in tests:
        try:
            test(cadre)
        except Exception:  # any failure counts and is shown; the other tests run
            failed += 1
            print(f"{test.__name__}: failed\n{traceback.format_exc()}")
    print(f"{name}: {len(tests) - failed} passed, {failed} failed, 0 skipped")
    if args.counts:
        add_counts(args.counts, len(tests) - failed, failed, 0)
        return 0
    return failed


def model_name(port):
    return json.loads(get(port, "/v1/models")[1])["data"][0]["id"]
