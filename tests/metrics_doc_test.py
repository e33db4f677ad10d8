#!/usr/bin/env python3
"""Checks that docs/metrics.md lists every metric that the sources name, and no other."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["buffer", "common", "learner", "rollout_server", "weight_sync"]
# Made from a role's name in common/metrics.cc.
TIME_SPLIT = re.compile(r"millrace_\w+_time_seconds_total")


def main():
    in_sources = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).iterdir():
            if path.suffix in (".cc", ".h"):
                in_sources |= set(re.findall(r'"(millrace_[a-z0-9_]+)"', path.read_text()))
    in_page = set(re.findall(r"^\| `(millrace_[a-z0-9_]+)`", (ROOT / "docs/metrics.md").read_text(), re.M))
    missing = sorted(in_sources - in_page)
    surplus = sorted(name for name in in_page - in_sources if not TIME_SPLIT.fullmatch(name))
    for name in missing:
        print(f"docs/metrics.md does not list {name}")
    for name in surplus:
        print(f"docs/metrics.md lists {name}, which no source names")
    print(f"{len(in_sources)} metrics, {len(missing) + len(surplus)} differences")
    return 1 if missing or surplus or not in_sources else 0


if __name__ == "__main__":
    sys.exit(main())
