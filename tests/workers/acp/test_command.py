from __future__ import annotations

import pytest

from workers.acp import AcpCommandError, AcpControl, AcpProcessSpec, SteeringMessage
from workers.acp.command import agent_environment


@pytest.mark.parametrize(
    ("text", "argv", "env"),
    [
        ("codex-acp", ("codex-acp",), {}),
        ("gemini --acp", ("gemini", "--acp"), {}),
        ("A=1 _b2='x y' npx -y 'an agent' C=3", ("npx", "-y", "an agent", "C=3"), {"A": "1", "_b2": "x y"}),
        ("A= B==c run", ("run",), {"A": "", "B": "=c"}),
        ("'/opt/my agents/run' \"\"", ("/opt/my agents/run", ""), {}),
        ("2A=1", ("2A=1",), {}),
        (" run\n# not a comment ", ("run", "#", "not", "a", "comment"), {}),
    ],
)
def test_a_command_is_shell_words_with_variables_before_them(
    text: str, argv: tuple[str, ...], env: dict[str, str]
) -> None:
    spec = AcpProcessSpec.parse(text)
    assert (spec.argv, spec.env) == (argv, env)


@pytest.mark.parametrize("text", ["", "  \n", "A=1", "A=1 B=2", "''", "run 'open", "run \\", "run \0"])
def test_what_is_no_command_is_refused(text: str) -> None:
    with pytest.raises(AcpCommandError):
        AcpProcessSpec.parse(text)


def test_the_environment_leaves_out_our_secrets_and_takes_what_was_set_as_it_is() -> None:
    ours = {"PATH": "/bin", "X_Api_Key": "1", "BASH_ENV": "x", "bash_env": "y", "TOKEN": "2", "X_TOKENS": "3", "S": "o"}
    composed = agent_environment(ours, {"S": "c", "C_TOKEN": "4"}, {"S": "r", "BASH_ENV": "z"})
    assert composed == {
        "PATH": "/bin", "bash_env": "y", "TOKEN": "2", "X_TOKENS": "3", "S": "r", "C_TOKEN": "4", "BASH_ENV": "z"
    }  # fmt: skip


def test_a_full_queue_gives_up_its_oldest_follow_up() -> None:
    control = AcpControl()
    assert [control.steer(text, 2) for text in "ab"] == [None, None]
    assert control.steer(SteeringMessage("c", "ada"), 2) == SteeringMessage("a")
    assert control.interrupt_and_steer("d", 2) == SteeringMessage("b")
    assert (control.take_next(), control.take_next(), control.take_next()) == (
        SteeringMessage("c", "ada"),
        SteeringMessage("d"),
        None,
    )


def test_thirty_two_follow_ups_wait_where_nothing_else_is_said() -> None:
    control = AcpControl()
    evicted = [control.steer(str(number)) for number in range(33)]
    assert evicted == [None] * 32 + [SteeringMessage("0")]
