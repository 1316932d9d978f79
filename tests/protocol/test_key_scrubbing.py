"""Keys are gone from the environment of a process, from what it starts and from what the system shows of it."""

from __future__ import annotations

import os
import subprocess
import sys


def test_a_key_is_in_no_environment_any_more() -> None:
    program = (
        "import os, subprocess\n"
        "from pathlib import Path\n"
        "from protocol.key_scrubbing import take_out_of_environment\n"
        "assert b'canary' in Path('/proc/self/environ').read_bytes()\n"
        "take_out_of_environment(['A_KEY', 'NOT_SET'])\n"
        "assert 'A_KEY' not in os.environ\n"
        "assert b'canary' not in Path('/proc/self/environ').read_bytes()\n"
        "assert b'A_KEY' not in subprocess.check_output(['env'])\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(b'canary' in Path('/proc/self/environ').read_bytes())\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert os.environ['OTHER'] == 'kept' and b'OTHER=kept' in Path('/proc/self/environ').read_bytes()\n"
    )
    environ = {"PATH": os.environ["PATH"], "A_KEY": "sk-canary-1234", "OTHER": "kept"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
