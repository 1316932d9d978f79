"""The fixed interface: what outside code imports, and the law that keeps the two packages' faces to that."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import workers.acp
import workers.sandbox
from scripts.import_law import breaches
from tests.house.sample_tree import write_tree
from workers.acp import AcpControl, AcpError, AcpRunRequest, AcpRunResult


def test_the_names_of_the_interface_are_there() -> None:
    assert set(workers.acp.__all__) == {
        "AcpProcessSpec", "AcpRunRequest", "AcpRunResult", "AcpControl", "SteeringMessage", "run_acp_turn",
        "AcpError", "AcpCommandError", "AcpSandboxError", "AcpCancelled", "AcpTimedOut", "AcpStopped",
        "AcpProtocolError", "AcpProcessExited", "ExecOutputTail",
    }  # fmt: skip
    assert set(workers.sandbox.__all__) == {"Sandbox", "LocalSandbox"}
    assert all(hasattr(workers.acp, name) for name in workers.acp.__all__)


def test_every_error_is_one_of_the_package() -> None:
    errors = [getattr(workers.acp, name) for name in workers.acp.__all__]
    found = [error for error in errors if inspect.isclass(error) and issubclass(error, Exception)]
    assert len(found) == 8
    assert all(issubclass(error, AcpError) for error in found)


def test_the_signatures_are_the_fixed_ones() -> None:
    assert AcpRunRequest.__struct_fields__ == (
        "command", "prompt", "cwd", "env", "sandbox", "timeout", "cancel", "on_activity", "control"
    )  # fmt: skip
    assert AcpRunRequest.__struct_defaults__ == (None, None, None, None)
    assert AcpRunResult.__struct_fields__ == ("text", "stop_reason", "stderr", "duration")
    assert inspect.signature(AcpControl.steer).parameters["capacity"].default == 32
    assert inspect.signature(AcpControl.interrupt_and_steer).parameters["capacity"].default == 32


@pytest.mark.parametrize(
    "source",
    ["import os", "from workers.tools.table import TOOLS", "from trio import run", "x = 1", "def f(): ...", "f()"],
)
def test_a_face_does_nothing_but_name_what_is_its_own(tmp_path: Path, source: str) -> None:
    files = {"workers/acp/__init__.py": f'"""Doc."""\nfrom workers.acp.a import A\n__all__ = ["A"]\n{source}\n'}
    found = [(breach.path, breach.line) for breach in breaches(write_tree(tmp_path, files))]
    assert found == [("workers/acp/__init__.py", 4)]


def test_a_face_may_name_what_is_its_own(tmp_path: Path) -> None:
    files = {"workers/sandbox/__init__.py": '"""Doc."""\nfrom workers.sandbox.a import A\n__all__ = ["A"]\n'}
    assert breaches(write_tree(tmp_path, files)) == []
