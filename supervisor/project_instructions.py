"""The project's own words to agents: ``AGENTS.md``, else ``CLAUDE.md``, at its root.

They join every agent's system prompt as text. A link that leads out of the project is not followed: what lies there is
not the project's to hand to a model.
"""

from __future__ import annotations

from pathlib import Path

from supervisor.regular_file import read_beginning

NAMES = ("AGENTS.md", "CLAUDE.md")
MAX_BYTES = 32 * 1024
"""Of the file; every model call carries it."""


def read_instructions(project_root: Path) -> tuple[str, tuple[str, ...]]:
    """The text for a system prompt, empty if there is none, and notes for a person.

    ``project_root`` has no symbolic links in it.
    """
    for name in NAMES:
        path = project_root / name
        try:
            real = path.resolve(strict=True)
            if not real.is_relative_to(project_root):
                return "", (f"{path} is ignored: it leads out of the project",)
            content = read_beginning(real, MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, RuntimeError) as error:
            return "", (f"{path} is ignored: {getattr(error, 'strerror', None) or error}",)
        notes = (f"{path} is cut after {MAX_BYTES} bytes",) if len(content) > MAX_BYTES else ()
        text = content[:MAX_BYTES].decode("utf-8", "replace").strip()
        return (f"The project's instructions, from its {name}:\n\n{text}" if text else ""), notes
    return "", ()
