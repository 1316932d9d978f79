from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.core.shell_advice import advice_against

ROOT = "/home/u/proj"

DENIED = [
    "rm -rf build",
    "rm -r -- x",
    "rm build -R",
    'rm -fR "a b"',
    "rm --recursive x",
    "rm \\\n -rf x",
    "r\\m -rf x",
    "'rm' '-rf' x",
    "sudo ls",
    "/usr/bin/sudo -n ls",
    "echo a && git push origin main",
    "git -C sub -c a=b push",
    "git clean -fdx",
    "git clean -df && ls",
    "echo x > /etc/passwd",
    "echo x >/etc/passwd",
    "echo x >| /etc/passwd",
    "> /etc/passwd",
    "echo x >>../out",
    "cat a 2> /tmp/err",
    "cmd &> /tmp/x",
    "cmd >& /tmp/x",
    "cat <<END > /tmp/x\nhi\nEND",
    "echo hi >> ~/.bashrc",
    'echo hi > "$HOME/.profile"',
    "echo hi > ${HOME}/.profile",
    "echo hi > ~root/.profile",
    "cp a /tmp/b",
    "cp -t /tmp a b",
    "cp --target-directory=/tmp a b",
    "mv ../x .",
    "ln -s a /usr/local/bin/a",
    "tee /tmp/x < a",
    "ls | tee -a ~/.bashrc",
    "dd if=/dev/zero of=/dev/sda",
    "install -m 755 a /usr/bin/a",
    "bash -c 'rm -rf /'",
    "sh -ec 'echo x > /tmp/y'",
    'eval "rm -rf x"',
    "find . -name x -exec rm -rf {} +",
    "find . | xargs rm -rf",
    "find . -print0 | xargs -0 -n 1 rm -r",
    "cd .. && echo x > y",
    "(cd a && rm -rf b)",
    "echo $(git push)",
    "echo `sudo id`",
    'echo "a $(sudo id) b"',
    "diff <(sudo cat a) b",
    "if true; then rm -rf x; fi",
    "for i in a b; do rm -rf $i; done",
    "timeout 5 rm -rf x",
    "env A=b nohup rm -rf x &",
    "A=1 rm -rf x",
    "mkdir -p x && rm -rf x",
    "mkdir x; rm -rf x",
    "mkdir x && rm -rf x/../y",
    "mkdir x && rm -rf x y",
    "d=$(mktemp -d); rm -rf $d/../x",
    "cat <<'END'\ntext\nEND\nrm -rf x",
]

ALLOWED = [
    "",
    "ls -la",
    "echo 'rm -rf /'",
    'echo "sudo git push"',
    "# rm -rf /",
    "ls # > /etc/passwd",
    "rm file",
    "rm -f a b",
    "git status",
    "git push --dry-run",
    "git clean -n",
    'git commit -m "git push later"',
    "echo x > out.txt",
    "echo x > /home/u/proj/a/b",
    "echo hi > ~/proj/x",
    "ls 2>&1 >/dev/null",
    "ls > /dev/null 2>&1",
    "cp /etc/hosts .",
    "cp ../a b",
    "cp a",
    "ln -s /usr/lib/x lib",
    "mkdir x && rm -r x",
    "mkdir x && cd x && git init && git clean -fd",
    "mkdir /tmp/x && cp a /tmp/x",
    'd=$(mktemp -d) && cp a "$d/b" && rm -rf "$d"',
    "tmp=`mktemp -d`; rm -rf ${tmp}",
    "git clone https://example.org/y /tmp/y && rm -rf /tmp/y",
    "echo x > $OUT",
    "cat <<'END'\nrm -rf /\nsudo x\nEND",
    "cat <<-END\n\trm -rf /\n\tEND\nls",
    "grep -rn 'git push' .",
    "python -c \"print('sudo')\"",
    "cd sub && echo x > ../y",
    "(cd /tmp); echo x > y",
    "cat <<< 'rm -rf x'",
    "awk '$1 > 3' f",
    "docker rm -f x",
    "find . -exec rm {} +",
    "a=sudo",
]


@pytest.mark.parametrize("command", DENIED)
def test_what_is_plain_to_see_is_refused(command: str) -> None:
    assert advice_against(command, ROOT) is not None


@pytest.mark.parametrize("command", ALLOWED)
def test_what_does_no_harm_is_let_through(command: str) -> None:
    assert advice_against(command, ROOT) is None


def test_the_reason_names_what_it_is_about() -> None:
    assert advice_against("make && sudo make install", ROOT) == "it calls sudo"
    assert advice_against('cp a "/tmp/my b"', ROOT) == 'cp writes to "/tmp/my b", outside the project'


@given(st.text(alphabet="rm -sudogit'\"\\$(){}`<>|&;#\n /~EOF=[*", max_size=60) | st.text(max_size=60))
def test_no_text_is_too_odd_to_be_read(command: str) -> None:
    advice_against(command, ROOT)


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_quoted_words_are_never_taken_for_commands(words: list[str]) -> None:
    assert advice_against("echo " + " ".join(map(shlex.quote, words)), ROOT) is None


NEXT_TO = st.sampled_from(
    ["{}", "true; {}", "true && {}", "false || {}", "true | {}", "( {} )", "{{ {}; }}", "a\n{}\nb"]
)
AROUND = st.lists(NEXT_TO, max_size=4)


@given(AROUND, st.sampled_from(["rm -rf x", "sudo true", "git push", "echo x >/etc/x", "cp a /etc/x"]))
def test_a_command_is_found_wherever_it_stands(around: list[str], command: str) -> None:
    for shape in around:
        command = shape.format(command)
    assert advice_against(command, ROOT) is not None


@given(AROUND, st.sampled_from(["rm x", "git pull", "echo x >y", "cp /etc/x a", "echo sudo"]))
def test_an_innocent_command_stays_so_wherever_it_stands(around: list[str], command: str) -> None:
    for shape in around:
        command = shape.format(command)
    assert advice_against(command, ROOT) is None


@given(st.text(alphabet="ab ./'\"$", min_size=1, max_size=15))
def test_a_path_below_the_root_is_never_outside_however_it_is_quoted(name: str) -> None:
    if ".." not in name:
        assert advice_against(f"echo x > {shlex.quote(f'{ROOT}/{name}')}", ROOT) is None


def test_a_long_command_takes_no_long_time() -> None:
    for command in ("(" * 50_000, "$(" * 20_000, "`" * 50_000, '"' * 50_001, "a <<E " * 5_000, "x=" * 30_000):
        advice_against(command, ROOT)
