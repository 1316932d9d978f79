from __future__ import annotations

from workers.sandbox.environment import command_environment


def test_only_what_is_allowed_is_passed_on() -> None:
    ours = {"PATH": "/bin", "HOME": "/home/me", "LC_ALL": "C", "MY_TOKEN": "secret", "CORRAL_DEBUG": "1", "LCX": "no"}
    passed = command_environment(ours)
    assert passed["PATH"] == "/bin"
    assert passed["HOME"] == "/home/me"
    assert passed["LC_ALL"] == "C"
    assert not {"MY_TOKEN", "CORRAL_DEBUG", "LCX"} & set(passed)


def test_nothing_waits_for_a_person() -> None:
    passed = command_environment({"PAGER": "less", "EDITOR": "vim"})
    assert (passed["PAGER"], passed["EDITOR"], passed["GIT_TERMINAL_PROMPT"]) == ("cat", "true", "0")


def test_what_is_asked_for_by_name_is_passed_on_as_it_is() -> None:
    ours = {"JAVA_HOME": "/opt/java", "PAGER": "less", "OTHER": "x"}
    passed = command_environment(ours, also=["JAVA_HOME", "PAGER", "NOT_SET"])
    assert (passed["JAVA_HOME"], passed["PAGER"]) == ("/opt/java", "less")
    assert not {"OTHER", "NOT_SET"} & set(passed)


def test_a_command_has_a_path_even_where_we_have_none() -> None:
    assert "/usr/bin" in command_environment({})["PATH"].split(":")
