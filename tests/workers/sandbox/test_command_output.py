from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox.command_output import LIVE_LINES, LONGEST_LINE, CommandOutput, HeadAndTail, plain_text

pieces = st.lists(st.text(alphabet="ab\n", max_size=12), max_size=40)


@given(pieces, st.integers(0, 20), st.integers(1, 20))
def test_head_and_tail_keep_a_short_text_whole_and_both_ends_of_a_long_one(
    texts: list[str], head: int, tail: int
) -> None:
    kept = HeadAndTail(head, tail)
    for text in texts:
        kept.add(text)
    whole = "".join(texts)
    if len(whole) <= head + tail:
        assert kept.text() == whole
        return
    before, note, after = kept.text().partition("[... ")
    left_out, _, after = after.partition(" characters left out ...]\n")
    assert note
    assert len(after) <= tail
    assert whole.endswith(after)
    assert len(before.rstrip("\n")) <= head
    beginning = whole[: len(whole) - len(after) - int(left_out)]
    assert before in (beginning, beginning + "\n")


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_the_text_and_the_lines_do_not_depend_on_how_the_bytes_were_split(data: bytes, cuts: list[int]) -> None:
    def take(chunks: list[bytes]) -> tuple[str, list[str]]:
        lines: list[str] = []
        output = CommandOutput(lambda line, _is_stderr: lines.append(line))
        for chunk in chunks:
            output.feed(chunk, False)
        output.finish()
        return output.text(), lines

    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[start:end] for start, end in pairwise(edges)]
    assert take(chunks) == take([data])


def test_a_line_of_one_stream_is_not_broken_by_the_other() -> None:
    output = CommandOutput(lambda _line, _is_stderr: None)
    output.feed(b"half a ", False)
    output.feed(b"from the other\n", True)
    output.feed(b"line\n", False)
    assert output.text() == "from the other\nhalf a line"


def test_a_line_without_end_comes_out_in_pieces() -> None:
    lines: list[str] = []
    output = CommandOutput(lambda line, _is_stderr: lines.append(line))
    for _ in range(20):
        output.feed(b"x" * 1_000, False)
    assert lines
    assert all(len(line) <= LONGEST_LINE + 1_000 for line in lines)


def test_live_output_ends_with_a_note_when_there_is_too_much_and_the_text_goes_on() -> None:
    lines: list[str] = []
    output = CommandOutput(lambda line, _is_stderr: lines.append(line))
    for number in range(LIVE_LINES * 2):
        output.feed(b"%d\n" % number, False)
    assert len(lines) == LIVE_LINES
    assert "not shown live" in lines[-1]
    assert output.text().endswith(f"{LIVE_LINES * 2 - 1}")


def test_text_for_a_terminal_becomes_plain() -> None:
    assert plain_text("\x1b[1;32mgreen\x1b[m \x1b]0;title\x07x\x1b(B") == "green x"
    assert plain_text("10%\r20%\r\ndone\n") == "10%\n20%\ndone\n"
    assert plain_text("tab\tbell\x07\x9b") == "tab\tbell\ufffd\ufffd"
