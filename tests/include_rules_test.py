#!/usr/bin/env python3
"""Who may include whom (docs/architecture.md). Prints file:line and the rule for every breach."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Folder -> what its files may include besides themselves: folders, or single headers.
ALLOWED = {
    "proto": set(),
    "common": set(),
    "evaluation": {"common"},
    "environments": {"common", "proto"},
    "buffer": {"common", "proto"},
    "weight_sync": {"common", "proto"},
    # The tokenizer turns the messages of a Problem into ids.
    "model": {"common", "environments/task.h"},
    "rollout_server": {
        "common", "proto", "model", "environments",
        "buffer/buffer_client.h", "buffer/trajectory_proto.h",
        "weight_sync/subscriber.h", "weight_sync/transport.h", "weight_sync/manifest.h",
    },
    "learner": {
        "common", "proto", "model", "environments", "evaluation",
        "buffer/buffer_client.h", "buffer/trajectory_proto.h",
        "weight_sync/publisher.h", "weight_sync/transport.h", "weight_sync/manifest.h",
    },
    "cli": {
        "common", "environments", "evaluation", "model",
        "rollout_server/engine.h", "rollout_server/sample_builder.h",
    },
}
NO_TORCH = {"proto", "common", "evaluation", "environments", "buffer", "weight_sync"}
# The NCCL transport: the file that talks to the library, and the transport on top of it.
NCCL_FILES = ("weight_sync/nccl_api.cc", "weight_sync/nccl_transport.cc")
# Files at the doors (those that make or answer calls): they may see generated protobuf code.
DOOR = re.compile(r"(service|client|_proto|main|loop|coordinator|publisher|subscriber|server"
                  r"|push_reactor|push_stream|evaluator)[a-z_]*\.(h|cc)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def sources():
    folders = list(ALLOWED) + ["tests", "bench"]
    for folder in folders:
        for base, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in sorted(names):
                if name.endswith((".h", ".cc")):
                    yield os.path.relpath(os.path.join(base, name), ROOT)


def is_torch(path):
    return path.split("/")[0] in ("torch", "ATen", "c10")


def check_include(path, target, quoted):
    """Returns what is wrong with one include, or None."""
    folder = path.split("/")[0]
    if os.path.basename(target) == "nccl.h" and path not in NCCL_FILES:
        return f"nccl.h may only be included by {' and '.join(NCCL_FILES)}"
    if target == "torch/torch.h":
        return "torch/torch.h costs half a minute a file; include the narrow header"
    if is_torch(target) and folder in NO_TORCH:
        return f"{folder}/ must not see LibTorch"
    generated = target.startswith("proto/") and target.endswith(".pb.h")
    if generated and folder in ALLOWED and folder != "proto":
        if not DOOR.search(os.path.basename(path)):
            return "generated protobuf code belongs to services, clients and *_proto files"
    if not quoted:
        return None
    other = target.split("/")[0]
    if not generated and not os.path.exists(os.path.join(ROOT, target)):
        beside = os.path.exists(os.path.join(ROOT, os.path.dirname(path), target))
        if beside or other in ALLOWED or other in ("tests", "bench"):
            return "no such file; include paths start at the root of the repository"
        return None  # a library's header
    if folder not in ALLOWED or other == folder:  # tests and benchmarks may see everything
        return None
    if other in ALLOWED[folder] or target in ALLOWED[folder]:
        return None
    return f"{folder}/ must not include {other}/ (allowed: {', '.join(sorted(ALLOWED[folder]))})"


def check(text, path):
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        problem = check_include(path, match.group(2), match.group(1) == '"')
        if problem:
            problems.append(f"{path}:{number}: {match.group(2)}: {problem}")
    return problems


def self_check():
    """The rules must be able to fail."""
    bad = [
        ("buffer/x.cc", "#include <ATen/core/Tensor.h>"),
        ("weight_sync/x.cc", "#include <nccl.h>"),
        ("common/x.h", '#include "buffer/buffer_client.h"'),
        ("learner/x.cc", '#include "rollout_server/engine.h"'),
        ("rollout_server/x.cc", '#include "learner/train.h"'),
        ("buffer/admission.cc", '#include "proto/buffer.pb.h"'),
        ("model/x.cc", "#include <torch/torch.h>"),
        ("common/x.cc", '#include "clock.h"'),
    ]
    good = [
        ("weight_sync/nccl_transport.cc", "#include <nccl.h>"),
        ("model/x.cc", "#include <ATen/core/Tensor.h>"),
        ("buffer/buffer_service.cc", '#include "proto/buffer.pb.h"'),
        ("rollout_server/x.cc", '#include "model/tokenizer.h"'),
    ]
    for path, line in bad:
        assert check(line, path), f"the rule for {path} with {line} does not fire"
    for path, line in good:
        assert not check(line, path), f"{path} with {line} is refused: {check(line, path)}"


def main():
    self_check()
    problems = []
    count = 0
    for path in sources():
        count += 1
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            problems += check(file.read(), path)
    for problem in problems:
        print(problem)
    print(f"{count} files, {len(problems)} breaches of the include rules")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
