#!/usr/bin/env python3
"""Run the test programs of one or more build folders and add up their results.

usage: run_tests.py [--only NAME[,NAME]] FOLDER...
Prints each failing test with its output, a line per program, and last 'N passed, N failed, N skipped'.
The counts of earlier stages can be passed in with --carry FILE (JSON), which is then updated instead of printed.
"""
import argparse
import concurrent.futures
import glob
import json
import os
import subprocess
import sys
import tempfile


def run_program(path):
    """Counts of one GoogleTest program: (passed, failed, skipped, text to show)."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        try:
            done = subprocess.run([path, f"--gtest_output=json:{report.name}", "--gtest_brief=1"], timeout=1200,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as late:
            return 0, 1, 0, f"{path}: not done after {late.timeout} s\n{(late.stdout or b'').decode(errors='replace')[-20000:]}"
        text = done.stdout.decode(errors="replace")
        try:
            with open(report.name) as file:
                suites = json.load(file)["testsuites"]
        except (ValueError, KeyError):
            return 0, 1, 0, f"{path}: ended with {done.returncode} before its report\n{text[-20000:]}"
    passed = failed = skipped = 0
    for suite in suites:
        for test in suite["testsuite"]:
            if test.get("failures"):
                failed += 1
            elif test.get("result") == "SKIPPED":
                skipped += 1
            else:
                passed += 1
    if done.returncode != 0 and failed == 0:  # a sanitizer or a crash at exit
        failed = 1
    return passed, failed, skipped, text[-20000:] if failed else ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--carry")
    parser.add_argument("--total", help="only print the counts of this file")
    parser.add_argument("folders", nargs="*")
    args = parser.parse_args()
    if args.total:
        with open(args.total) as file:
            passed, failed, skipped = json.load(file)
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
        return 1 if failed or not passed else 0
    only = set(filter(None, args.only.split(",")))
    totals = [0, 0, 0]
    if args.carry and os.path.exists(args.carry):
        with open(args.carry) as file:
            totals = json.load(file)
    programs = [p for f in args.folders for p in sorted(glob.glob(os.path.join(f, "*_test"))) if os.access(p, os.X_OK)]
    if only:
        programs = [p for p in programs if os.path.basename(p).removesuffix("_test") in only]
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for path, (passed, failed, skipped, text) in zip(programs, pool.map(run_program, programs)):
            print(f"{path}: {passed} passed, {failed} failed, {skipped} skipped", flush=True)
            if text:
                print(text, flush=True)
            totals = [totals[0] + passed, totals[1] + failed, totals[2] + skipped]
    if args.carry:
        with open(args.carry, "w") as file:
            json.dump(totals, file)
        return 0
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return 1 if totals[1] else 0


if __name__ == "__main__":
    sys.exit(main())
