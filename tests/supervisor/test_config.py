"""Settings: which place wins, where the prompt comes from, and the limits."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from supervisor.config import OneShotSettings, read_settings
from supervisor.core.grants import TreeLimits
from supervisor.errors import WrongUsage
from supervisor.flags import parse_one_shot
from supervisor.prompt import MAX_MENTION_BYTES, MAX_PROMPT_BYTES

LOCAL = ("--provider", "ollama", "--model", "m")

Read: TypeAlias = Callable[..., OneShotSettings]


class Terminal(io.StringIO):
    """A standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


def piped(content: bytes) -> io.TextIOWrapper:
    """A standard input that is a pipe with ``content`` in it."""
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Settings of a command line in a project and a home of their own."""

    def read(
        *arguments: str, stdin: io.TextIOBase | None = None, options: Sequence[str] = LOCAL, **variables: str
    ) -> OneShotSettings:
        environ = {"HOME": str(tmp_path), **variables}
        values = parse_one_shot([*options, "--project-root", str(tmp_path), *arguments], environ)
        return read_settings(values, environ, stdin)  # type: ignore[arg-type]  # a StringIO serves as a TextIO here

    return read


@pytest.mark.parametrize(
    "arguments",
    [["-p", "-x"], ["--prompt", "-x"], ["--prompt=-x"], ["-p-x"], ["--", "-x"], ["-q", "--", "-x"]],
    ids=" ".join,
)
def test_a_prompt_that_starts_with_a_dash_is_text(read: Read, arguments: list[str]) -> None:
    assert read(*arguments).prompt == "-x"


@pytest.mark.parametrize(
    "text", ["--help", "--", "--model", "-q", "-p", "--output-format=json", "--prompt=x", "=", "-pq"]
)
def test_what_follows_p_is_text_whatever_it_looks_like(read: Read, text: str) -> None:
    settings = read("-p", text, "-q")
    assert settings.prompt == text
    assert settings.quiet


def test_options_may_stand_before_and_after_a_positional_prompt(read: Read) -> None:
    settings = read("--max-turns", "3", "Fix it", "--timeout", "5")
    assert (settings.prompt, settings.limits.max_turns, settings.timeout) == ("Fix it", 3, 5.0)


def test_an_option_after_the_two_dashes_is_no_option(read: Read) -> None:
    with pytest.raises(WrongUsage, match="put it in quotes"):
        read("--", "Fix it", "--quiet")


def test_piped_input_is_the_prompt_where_no_other_is_given(read: Read) -> None:
    assert read(stdin=piped(b"Fix it\n")).prompt == "Fix it\n"
    assert read("-p", "-", stdin=piped(b"Fix it\n")).prompt == "Fix it\n"
    assert read("-", stdin=piped(b"Fix it\n")).prompt == "Fix it\n"


def test_piped_input_goes_behind_a_prompt_that_is_given(read: Read) -> None:
    for arguments in (("-p", "Explain"), ("Explain",), ("--", "Explain")):
        assert read(*arguments, stdin=piped(b"a = 1\n")).prompt == "Explain\n\na = 1\n"
    assert read("Explain", stdin=piped(b"")).prompt == "Explain"
    assert read("Explain", stdin=Terminal()).prompt == "Explain"


def test_a_pipe_that_stays_silent_is_left_alone_with_a_note(read: Read) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, encoding="utf-8") as stdin, os.fdopen(write_end, "w"):
        settings = read("Explain", "--stdin-timeout", "0.05", stdin=stdin)
    assert settings.prompt == "Explain"
    assert settings.notes == ("standard input was silent for 0.05 s and is left alone; < /dev/null saves the wait",)


def test_a_pipe_that_has_begun_is_read_to_its_end_however_long_it_takes(read: Read) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, encoding="utf-8") as stdin, os.fdopen(write_end, "w", encoding="utf-8") as pipe:
        pipe.write("first ")
        pipe.flush()
        rest = threading.Timer(0.3, _finish, (pipe,))
        rest.start()
        assert read("Explain", "--stdin-timeout", "0.1", stdin=stdin).prompt == "Explain\n\nfirst and last"
        rest.join(5)


def _finish(pipe: io.TextIOWrapper) -> None:
    pipe.write("and last")
    pipe.close()


def test_a_prompt_may_come_from_a_file(read: Read, tmp_path: Path) -> None:
    (tmp_path / "task.md").write_text("Fix it\n")
    file = str(tmp_path / "task.md")
    assert read("--prompt-file", file).prompt == "Fix it\n"
    assert read("--prompt-file", file, stdin=piped(b"more")).prompt == "Fix it\n\n\nmore"
    assert read("--prompt-file", "-", stdin=piped(b"piped")).prompt == "piped"
    assert read("-p", "the flag wins", CORRAL_PROMPT_FILE=file).prompt == "the flag wins"
    for arguments, sentence in (
        (("--prompt-file", file, "-p", "x"), "two prompts"),
        (("--prompt-file", file, "x"), "two prompts"),
        (("--prompt-file", str(tmp_path / "none")), "none can't be read: No such file"),
        (("--prompt-file", str(tmp_path)), "can't be read: Is a directory"),
    ):
        with pytest.raises(WrongUsage, match=sentence):
            read(*arguments)


# -- files that the prompt names --------------------------------------------------------------------------------------


def test_a_file_named_in_the_prompt_goes_behind_it_once(read: Read, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "with blank.py").write_text("b = 2\n")
    prompt = 'Explain @a.py, then @"with blank.py" (and @a.py again).'
    settings = read(prompt)
    assert settings.prompt == f"{prompt}\n\n@a.py:\na = 1\n\n\n@with blank.py:\nb = 2\n"
    assert settings.notes == ()


def test_what_is_no_file_stays_text(read: Read, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.py").write_text("a = 1\n")
    prompt = "Ask me@a.py and @somebody about @pytest.fixture, @folder, @ and @" + "x" * 5000
    assert read(prompt).prompt == prompt


def test_piped_text_names_no_files(read: Read, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    assert "hidden" not in read("Explain", stdin=piped(b"@secret")).prompt
    assert "hidden" not in read("-p", "-", stdin=piped(b"@secret")).prompt


def test_a_file_outside_the_project_is_taken_as_given_with_a_note(read: Read, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "other.txt").write_text("other")
    settings = read(f"Use @{tmp_path}/other.txt", "--project-root", str(project))
    assert settings.prompt.endswith("other.txt:\nother")
    assert settings.notes == (f"@{tmp_path}/other.txt lies outside the project; its content goes to the model",)


def test_a_named_file_is_bounded_and_must_be_text(read: Read, tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("x" * (MAX_MENTION_BYTES + 10))
    (tmp_path / "binary").write_bytes(b"a\0b")
    settings = read("See @big.txt and @binary")
    assert "x" * MAX_MENTION_BYTES + "\n[the rest of the file is left out]" in settings.prompt
    assert "x" * (MAX_MENTION_BYTES + 1) not in settings.prompt
    assert settings.notes == (
        f"@big.txt is cut after {MAX_MENTION_BYTES} bytes",
        "@binary is no text and is not put behind the prompt",
    )


def test_a_terminal_is_not_waited_for(read: Read) -> None:
    with pytest.raises(WrongUsage, match="there is no prompt"):
        read(stdin=Terminal())


def test_a_closed_standard_input_is_no_prompt(read: Read) -> None:
    with pytest.raises(WrongUsage, match="there is no prompt"):
        read(stdin=None)
    with pytest.raises(WrongUsage, match="standard input is closed"):
        read("-p", "-", stdin=None)


def test_bytes_that_are_no_text_become_replacement_characters(read: Read) -> None:
    assert read(stdin=piped(b"a\xff\xc3\xa9")).prompt == "a�é"
    assert "\udcff" not in read("-p", "a\udcff").prompt


def test_a_prompt_beyond_the_limit_is_refused_not_cut(read: Read) -> None:
    assert len(read(stdin=piped(b"x" * MAX_PROMPT_BYTES)).prompt) == MAX_PROMPT_BYTES
    with pytest.raises(WrongUsage, match="longer than"):
        read(stdin=piped("é".encode() * (MAX_PROMPT_BYTES // 2 + 1)))


def test_a_flag_wins_over_its_variable_and_that_over_the_default(read: Read) -> None:
    assert read("-p", "x").limits == TreeLimits()
    assert read("-p", "x", CORRAL_MAX_AGENTS="7").limits.max_agents == 7
    assert read("-p", "x", "--max-agents", "8", CORRAL_MAX_AGENTS="7").limits.max_agents == 8


def test_the_user_s_file_stands_behind_flag_and_variable(read: Read, tmp_path: Path) -> None:
    project, config = tmp_path / "project", tmp_path / "config"
    project.mkdir()
    (config / "corral").mkdir(parents=True)
    (config / "corral" / "config.toml").write_text('provider = "vllm"\nmodel = "m"\nmax-agents = 6\nquiet = true\n')
    place = ("--project-root", str(project), "x")
    settings = read(*place, options=(), XDG_CONFIG_HOME=str(config))
    assert (settings.model.provider, settings.limits.max_agents, settings.quiet) == ("vllm", 6, True)
    settings = read(*place, options=(), XDG_CONFIG_HOME=str(config), CORRAL_MAX_AGENTS="7", CORRAL_QUIET="0")
    assert (settings.limits.max_agents, settings.quiet) == (7, False)
    settings = read(*place, "--max-agents", "8", options=(), XDG_CONFIG_HOME=str(config), CORRAL_MAX_AGENTS="7")
    assert settings.limits.max_agents == 8
    (config / "corral" / "config.toml").write_text("\nmax-agents = -1\n")
    with pytest.raises(WrongUsage, match=r"config\.toml, line 2: max-agents takes a whole number of at least 0"):
        read(*place, XDG_CONFIG_HOME=str(config))


def test_a_provider_of_the_user_s_own_can_be_named_by_an_agent_file(read: Read, tmp_path: Path) -> None:
    project, config = tmp_path / "project", tmp_path / "config"
    (project / "agents").mkdir(parents=True)
    agent = {"name": "own", "system_prompt": "x", "provider": "mine"}
    (project / "agents" / "own.json").write_text(json.dumps(agent))
    (config / "corral").mkdir(parents=True)
    text = '[providers.mine]\nbase-url = "https://mine.test/v1"\nkey-variable = "MINE"\nmodel = "m1"\n'
    (config / "corral" / "config.toml").write_text(text)
    place = ("--project-root", str(project), "x", "-a", "own")
    settings = read(*place, options=(), XDG_CONFIG_HOME=str(config), MINE="k")
    assert (settings.model.base_url, settings.model.model, settings.model.api_key) == (
        "https://mine.test/v1",
        "m1",
        "k",
    )
    assert settings.environ == {"MINE": "k"}
    with pytest.raises(WrongUsage, match="mine needs a key: set MINE"):
        read(*place, options=(), XDG_CONFIG_HOME=str(config))


def test_an_empty_variable_counts_as_none(read: Read) -> None:
    assert read("-p", "x", CORRAL_TIMEOUT="", CORRAL_QUIET="").timeout is None


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("TRUE", True), ("off", False), ("0", False)])
def test_a_switch_has_a_variable_too(read: Read, value: str, expected: bool) -> None:
    assert read("-p", "x", CORRAL_QUIET=value).quiet is expected
    assert read("-p", "x", "-q", CORRAL_QUIET=value).quiet


def test_every_flag_that_takes_a_value_has_a_variable(read: Read, tmp_path: Path) -> None:
    session = tmp_path / ".local" / "state" / "corral" / "sessions" / "20200101-000000-abcdef"
    session.mkdir(parents=True)
    (session / "session.db").touch()
    settings = read(
        options=(),
        CORRAL_PROMPT="Fix it",
        CORRAL_PROVIDER="lmstudio",
        CORRAL_MODEL="m",
        CORRAL_BASE_URL="http://127.0.0.1:9/v1/",
        CORRAL_MAX_CONTEXT_TOKENS="12000",
        CORRAL_MAX_TOKENS="100",
        CORRAL_TEMPERATURE="0",
        CORRAL_TRUST="plan",
        CORRAL_AGENT="task",
        CORRAL_SESSION="20200101-000000",
        CORRAL_OUTPUT_FORMAT="stream-json",
        CORRAL_MAX_TURNS="1",
        CORRAL_MAX_TOKENS_TOTAL="2",
        CORRAL_MAX_AGENTS="0",
        CORRAL_MAX_PARALLEL_AGENTS="4",
        CORRAL_MAX_AGENT_DEPTH="0",
        CORRAL_TIMEOUT="1.5",
        CORRAL_RETRY_DELAY="0",
        CORRAL_CANCEL_GRACE="0.25",
        CORRAL_STDIN_TIMEOUT="0.5",
        CORRAL_VERBOSE="1",
        CORRAL_CONNECT_TIMEOUT="2",
        CORRAL_IDLE_TIMEOUT="3",
        CORRAL_CALL_TIMEOUT="4",
    )
    model = settings.model
    assert settings.prompt == "Fix it"
    assert (model.provider, model.model, model.base_url) == ("lm-studio", "m", "http://127.0.0.1:9/v1")
    assert (model.context_window, model.max_tokens, model.temperature) == (12000, 100, 0.0)
    assert (settings.trust, settings.agent_name, settings.output_format) == ("plan", "task", "stream-json")
    assert settings.session_id == "20200101-000000-abcdef"
    assert settings.limits == TreeLimits(
        max_turns=1, max_tokens_total=2, max_agents=0, max_parallel_agents=4, max_agent_depth=0
    )
    assert (settings.timeout, settings.retry_delay, settings.worker_times.grace) == (1.5, 0.0, 0.25)
    assert settings.verbose
    assert (model.connect_timeout, model.idle_timeout, model.call_timeout) == (2.0, 3.0, 4.0)


def test_the_defaults_are_those_of_the_contract(read: Read) -> None:
    settings = read("-p", "x")
    assert (settings.output_format, settings.trust, settings.agent_name) == ("text", "auto", "default")
    assert (settings.timeout, settings.retry_delay, settings.worker_times.grace) == (None, 1.0, 2.0)
    assert settings.session_id is None
    assert not settings.quiet
    assert not settings.verbose
    assert settings.project_is_trusted  # nothing in it needs trust


def test_the_project_root_is_resolved(read: Read, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert read("-p", "x", "--project-root", str(tmp_path / "link" / ".." / "link")).project_root == real


def test_an_agent_s_trust_narrows_the_run_s_and_never_widens_it(read: Read, tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    for name in ("plan", "auto"):
        agent = {"name": f"is-{name}", "system_prompt": "x", "trust": name}
        (tmp_path / "agents" / f"is-{name}.json").write_text(json.dumps(agent))
    assert read("-p", "x", "-a", "is-plan").trust == "plan"
    assert read("-p", "x", "-a", "is-auto", "--trust", "safe").trust == "safe"
    assert read("-p", "x", "-a", "is-auto").trust == "auto"


def test_the_settings_keep_no_more_of_the_environment_than_the_keys(read: Read) -> None:
    assert read("-p", "x", OPENAI_API_KEY="k", SECRET="s").environ == {"OPENAI_API_KEY": "k"}
