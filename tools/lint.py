#!/usr/bin/env python3
"""Check what a compiler does not: include order between folders (deps.txt) and file sizes."""
import os
import re
import sys


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    allowed = {}
    for line in open("deps.txt"):
        line = line.split("#")[0].strip()
        if line:
            folder, _, deps = line.partition(":")
            allowed[folder.strip()] = deps.split()
    problems = []
    for root, _, files in os.walk("src"):
        parts = root.split(os.sep)
        if len(parts) < 2:
            continue
        folder = parts[1]
        if folder not in allowed:
            problems.append(f"{root}: folder {folder} is not in deps.txt")
            continue
        for name in files:
            if not name.endswith((".cc", ".h", ".cu", ".cuh")):
                continue
            path = os.path.join(root, name)
            lines = open(path, encoding="utf-8").read().splitlines()
            if len(lines) > 600:
                problems.append(f"{path}: {len(lines)} lines; split files over 600")
            for number, line in enumerate(lines, 1):
                if len(line) > 200:
                    problems.append(f"{path}:{number}: {len(line)} columns; break lines over 200")
                match = re.match(r'#include "([a-z_]+)/', line)
                if not match or match[1] in (folder, "tests", "hwy"):
                    continue
                if "*" not in allowed[folder] and match[1] not in allowed[folder]:
                    problems.append(f"{path}:{number}: {folder} may not include {match[1]} (deps.txt)")
    print("\n".join(problems) or "lint: clean")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
