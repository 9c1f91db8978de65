"""Untrusted JSON, and errors about it in one sentence."""

from __future__ import annotations

import json


def parse(text: str, what: str) -> object:
    """The document in a text. Raises ValueError, in words, if it is not the JSON of `what`, with
    finite numbers only; if the text ends too soon it says so.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"expected finite numbers, got {constant}")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        cause = "it is cut short" if cut else error.msg
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"expected the JSON of {what}, but at {where}: {cause}") from None
    except RecursionError:
        raise ValueError(f"expected the JSON of {what}, but it is nested too deep") from None
