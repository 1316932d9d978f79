"""Ceilings are put on a process for good, so each test asks a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.house.installation import ROOT

LOOK = """
import json, resource, subprocess, sys
from protocol.agent_spec import Ceilings
from workers import ceilings
def soft(limit): return resource.getrlimit(limit)[0]
{body}
json.dump(found, sys.stdout)
"""


def in_a_process(body: str, prelude: str = "") -> dict[str, object]:
    """What ``body`` leaves in ``found``, run in a process that ``prelude`` prepared."""
    code = prelude + LOOK.format(body=body)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    found: dict[str, object] = json.loads(run.stdout)
    return found


def test_each_ceiling_is_a_soft_limit_of_the_process() -> None:
    found = in_a_process("""
ceilings.apply(Ceilings(memory_bytes=1 << 40, cpu_seconds=1000, open_files=100, file_bytes=12345))
found = {"memory": soft(resource.RLIMIT_AS), "cpu": soft(resource.RLIMIT_CPU),
         "files": soft(resource.RLIMIT_NOFILE), "size": soft(resource.RLIMIT_FSIZE)}
""")
    assert found == {"memory": 1 << 40, "cpu": 1000, "files": 100, "size": 12345}


def test_no_ceiling_leaves_the_limits_as_they_were() -> None:
    found = in_a_process("""
limits = [resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE]
before = [resource.getrlimit(limit) for limit in limits]
ceilings.apply(Ceilings())
found = {"same": before == [resource.getrlimit(limit) for limit in limits]}
""")
    assert found == {"same": True}


def test_a_ceiling_over_the_hard_limit_is_the_hard_limit() -> None:
    prelude = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (80, 90))\n"
    found = in_a_process(
        "ceilings.apply(Ceilings(open_files=1000)); found = {'files': soft(resource.RLIMIT_NOFILE)}", prelude
    )
    assert found == {"files": 90}


def test_a_tool_is_started_without_the_ceiling_of_memory_and_with_the_others() -> None:
    found = in_a_process("""
ceilings.apply(Ceilings(memory_bytes=1 << 40, open_files=100))
code = "import resource; print([resource.getrlimit(n)[0] for n in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)])"
with ceilings.memory_lifted():
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
found = {"tool": process.communicate()[0].strip(), "own": soft(resource.RLIMIT_AS)}
""")
    assert found == {"tool": "[-1, 100]", "own": 1 << 40}


def test_the_ceiling_of_memory_comes_back_when_the_start_of_a_tool_fails() -> None:
    found = in_a_process("""
ceilings.apply(Ceilings(memory_bytes=1 << 40))
try:
    with ceilings.memory_lifted():
        raise OSError
except OSError:
    found = {"own": soft(resource.RLIMIT_AS)}
""")
    assert found == {"own": 1 << 40}
