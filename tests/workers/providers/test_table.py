from __future__ import annotations

import subprocess
import sys

import pytest

from tests.workers.providers.chat_wire import settings
from workers.providers.openai_chat import OpenAIChat
from workers.providers.provider import Refused
from workers.providers.table import load


def test_an_adapter_is_loaded_by_its_name() -> None:
    assert isinstance(load(settings()), OpenAIChat)


def test_an_unknown_adapter_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(Refused, match=r"'nobody'.*openai_chat"):
        load(settings(adapter="nobody"))


@pytest.mark.parametrize("adapter", ["scripted"])
def test_a_run_without_a_network_loads_no_http_client(adapter: str) -> None:
    code = (
        "import sys, importlib\n"
        "from workers.providers.table import PROVIDERS\n"
        f"importlib.import_module(PROVIDERS[{adapter!r}].partition(':')[0])\n"
        "assert 'httpx' not in sys.modules, 'httpx was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
