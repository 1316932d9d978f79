"""The user's settings file: its values, its faults with their lines, and where it does not count."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import SettingsInvalid
from supervisor.provider_table import find_provider
from supervisor.settings_file import MAX_FILE_BYTES, SettingsFile, line_of, read_settings_file

PATH = Path("/home/me/config.toml")


def test_a_value_is_what_the_flag_would_say() -> None:
    file = SettingsFile(
        PATH, 'model = "m"\nmax-turns = 5\ntimeout = 1.5\nquiet = true\nmem_free = "1G"\nmax-tokens=7\n'
    )
    names = ("model", "max-turns", "timeout", "quiet", "mem-free", "max-tokens", "provider")
    assert [file.text(name) for name in names] == ["m", "5", "1.5", "1", "1G", "7", None]
    assert file.place("timeout") == "/home/me/config.toml, line 3"
    assert file.place("mem-free") == "/home/me/config.toml, line 5"


FAULTS = {
    "no TOML": ("model = \n", "is no TOML: "),
    "an unknown key": ('\nmodle = "m"\n', "line 2: there is no setting 'modle'; did you mean model?"),
    "a text for a number": ('# x\n\nmax-turns = "5"\n', "line 3: max-turns takes a whole number, not '5'"),
    "a switch for a number": ("max-turns = true\n", "line 1: max-turns takes a whole number, not true"),
    "a number for a switch": ("quiet = 1\n", "line 1: quiet takes true or false, not 1"),
    "a number for a text": ("model = 5\n", "line 1: model takes a text in quotes, not 5"),
    "a list": ('model = [\n"m"]\n', "line 1: model takes a text in quotes, not a list"),
    "one run's own": ('\n\nprompt = "x"\n', "line 3: prompt is for one run: give it as --prompt"),
    "twice": ("max-turns = 1\nmax_turns = 2\n", "line 2: max_turns is there twice"),
    "providers no table": ("providers = 1\n", "line 1: providers are tables: [providers.NAME]"),
    "a provider no table": ("[providers]\nmine = 1\n", "line 2: 'mine' is no provider"),
    "no address": ("[providers.mine]\n", "line 1: provider mine needs a base-url"),
    "no such address": ('[providers.mine]\nbase-url = "ftp://x"\n', "line 2: base-url is an address that starts"),
    "a key": ('[providers.mine]\nbase-url = "http://h/v1"\napi_key = "sk"\n', "line 3: no key is kept in a file"),
    "a key for a variable": ('[providers.mine]\nkey-variable = "sk-12"\n', "line 2: key-variable takes the name of"),
    "headers": ('[providers.mine]\nheaders = {a = "b"}\n', "line 2: a provider has no 'headers'"),
}


@pytest.mark.parametrize(("text", "sentence"), FAULTS.values(), ids=FAULTS)
def test_a_fault_names_the_file_and_the_line(text: str, sentence: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        SettingsFile(PATH, text)
    assert str(caught.value).startswith("/home/me/config.toml")
    assert sentence in str(caught.value)
    assert "sk" not in str(caught.value)


def test_a_provider_of_the_user_s_own_joins_the_table() -> None:
    text = '[providers.mine]\nbase-url = "http://gpu.test/v1/"\nkey-variable = "MINE"\nmodel = "m"\n'
    mine = SettingsFile(PATH, text).providers.find("MINE")
    assert mine is not None
    assert (mine.base_url, mine.key_variable, mine.model, mine.needs_key) == ("http://gpu.test/v1", "MINE", "m", True)
    assert not mine.is_local


def test_a_provider_of_ours_keeps_what_the_user_does_not_change() -> None:
    file = SettingsFile(PATH, '[providers.lm-studio]\nbase-url = "http://127.0.0.1:9/v1"\n')
    changed, ours = file.providers.find("lmstudio"), find_provider("lm-studio")
    assert changed is not None
    assert ours is not None
    assert (changed.base_url, changed.key_variable, changed.aliases) == (
        "http://127.0.0.1:9/v1",
        ours.key_variable,
        ours.aliases,
    )
    assert [entry.name for entry in file.providers] == [entry.name for entry in SettingsFile(PATH).providers]


def test_another_address_of_a_hosted_provider_may_need_no_key() -> None:
    changed = SettingsFile(PATH, '[providers.openai]\nbase-url = "http://127.0.0.1:9/v1"\n').providers.find("openai")
    assert changed is not None
    assert not changed.needs_key


def test_lines_are_those_of_the_text_though_strings_hold_what_looks_like_keys() -> None:
    text = 'a = """\nb = 1\n"""\n# b = 2\n[t]\nc = [\n  1,\n]\nb = 3\n[t.u]\nd.e = 1\n'
    assert [line_of(text, key) for key in (("a",), ("b",), ("t", "c"), ("t", "b"), ("t", "u", "d"))] == [1, 0, 6, 9, 11]


@given(st.lists(st.sampled_from(["# note", "", "x{} = 1", 'x{} = """\ny = 1\n"""', "x{} = [\n1,\n\n2]"]), max_size=12))
def test_every_key_is_found_on_its_line(pieces: list[str]) -> None:
    statements = [piece.format(number) for number, piece in enumerate(pieces)]
    text = "".join(f"{statement}\n" for statement in statements)
    for number, statement in enumerate(statements):
        if statement.startswith("x"):
            line = "\n".join(statements[:number]).count("\n") + (2 if number else 1)
            assert line_of(text, (f"x{number}",)) == line


def folders(tmp_path: Path) -> tuple[Path, Path]:
    config, project = tmp_path / "config", tmp_path / "project"
    config.mkdir()
    project.mkdir()
    return config, project


def test_no_file_is_an_empty_one(tmp_path: Path) -> None:
    file, notes = read_settings_file(tmp_path / "nowhere", tmp_path / "project")
    assert (file.text("model"), notes) == (None, ())


def test_a_file_inside_the_project_is_ignored_with_a_note(tmp_path: Path) -> None:
    config, project = folders(tmp_path)
    for folder in (project, project / "corral"):
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text('base-url = "http://evil.test/v1"\n')
        file, notes = read_settings_file(folder, project)
        assert file.text("base-url") is None
        assert notes == (f"{folder / 'config.toml'} is ignored: it lies inside the project, whose files set nothing",)
    (config / "config.toml").symlink_to(project / "config.toml")
    assert read_settings_file(config, project)[0].text("base-url") is None
    (tmp_path / "linked").symlink_to(project)
    assert read_settings_file(tmp_path / "linked", project)[0].text("base-url") is None


@pytest.mark.parametrize("content", [b"\xff", b"#" * (MAX_FILE_BYTES + 1), None], ids=["bytes", "huge", "folder"])
def test_a_file_that_can_not_be_read_is_an_error_with_its_name(tmp_path: Path, content: bytes | None) -> None:
    config, project = folders(tmp_path)
    if content is None:
        (config / "config.toml").mkdir()
    else:
        (config / "config.toml").write_bytes(content)
    with pytest.raises(SettingsInvalid, match=r"config\.toml"):
        read_settings_file(config, project)
