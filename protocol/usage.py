"""What model calls used, and how it adds up."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and calls of any number of model calls. All fields are whole numbers, zeros are written.

    Addition is associative and commutative with ``Usage()`` as its zero, so that sums over the tree of agents do not
    depend on the order in which agents finish. Source of the fields: the v1 wire contract, "Usage".
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    thinking_tokens: int = 0
    api_calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        """The usage of both."""
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_creation_tokens=self.cache_creation_tokens + other.cache_creation_tokens,
            thinking_tokens=self.thinking_tokens + other.thinking_tokens,
            api_calls=self.api_calls + other.api_calls,
        )

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens together: what ``--max-tokens-total`` limits."""
        return self.prompt_tokens + self.completion_tokens
