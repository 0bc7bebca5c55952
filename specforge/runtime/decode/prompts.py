"""In: a file of conversations or pre-tokenised rows. Out: the prompts to decode, and why other rows gave none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from specforge.runtime.data.chat_template import ChatTemplate
from specforge.runtime.data.conversation import ROLES, conversation
from specforge.runtime.data.prompts import prompt as tokenised
from specforge.runtime.data.report import counted
from specforge.runtime.data.row_fault import RowFault
from specforge.runtime.data.rows import read_rows


@attrs.frozen
class Prompt:
    """Token ids that a reply follows. `row`: its line in the file (its place in a JSON array), from 1."""

    row: int
    tokens: tuple[int, ...]


@attrs.frozen
class PromptFile:
    """Which prompts are read: the first `limit` rows of `path` (None: all), shorter than `max_positions` tokens."""

    path: Path
    limit: int | None
    vocab_size: int
    max_positions: int


def read_prompts(
    file: PromptFile, template: Callable[[], ChatTemplate]
) -> tuple[tuple[Prompt, ...], Mapping[str, int]]:
    """Prompts in file order, and the count of skipped rows by reason.

    Of a conversation: the first user turn with what stands before it, up to where the reply begins. Of a row with
    `input_ids`: the ids before the first one that `loss_mask` supervises, or all of them without a mask.
    `template` is called once, at the first conversation: a target with random weights has none.
    ValueError where no row gives a prompt.
    """
    prompts: list[Prompt] = []
    skipped: Counter[str] = Counter()
    faults: list[str] = []
    chat: ChatTemplate | None = None
    for row in read_rows(file.path, file.limit):
        try:
            if isinstance(row.value, dict) and "input_ids" in row.value:
                tokens = _of_ids(row.value, file.vocab_size)
            else:
                messages, tools = _first_turns(row.value)
                chat = chat or template()
                text = chat.render(messages, tools, reply_header=True)
                tokens = tuple(chat.tokenizer(text, add_special_tokens=False)["input_ids"])
            if len(tokens) >= file.max_positions:
                raise RowFault("prompt too long", f"{len(tokens)} tokens of {file.max_positions} positions")
            prompts.append(Prompt(row.number, tokens))
        except RowFault as fault:
            skipped[fault.reason] += 1
            faults.append(f"row {row.number}: {fault}")
    if not prompts:
        why = f"; {faults[0]}" if faults else ""
        raise ValueError(
            f"{file.path}: of its {counted(len(faults), 'row')} none gives a prompt{why}. "
            'Give rows like {"messages": [{"role": "user", "content": "..."}]} or {"input_ids": [...]}'
        )
    return tuple(prompts), dict(skipped)


def _of_ids(value: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    if "loss_mask" not in value:
        ids = value["input_ids"]
        inner = ids[0] if isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], list) else ids
        value = {**value, "loss_mask": [0] * (len(inner) if isinstance(inner, list) else 0) or [0]}
    tokens, supervised = tokenised(value, vocab_size)
    end = int(supervised.argmax()) if supervised.any() else len(tokens)
    if end == 0:
        raise RowFault("no prompt before the first supervised token")
    return tuple(tokens[:end].tolist())


def _first_turns(value: Any) -> tuple[list[dict[str, Any]], tuple[dict[str, Any], ...]]:
    """The messages up to the first user turn, and the row's tools."""
    if not isinstance(value, dict):
        raise RowFault("row is not an object", f"it is {type(value).__name__}")
    turns = value.get("messages", value.get("conversations"))
    if isinstance(turns, list):
        roles = [_role(turn) for turn in turns]
        asked = roles.index("user") + 1 if "user" in roles else len(turns)
        # A row must hold a reply to be trained on; here the reply is what the target will say.
        turns = [*turns[:asked], {"role": "assistant", "content": "?"}] if turns else turns
    known = {key: value[key] for key in ("system", "tools") if key in value}
    chat = conversation({**known, "messages": turns})
    return list(chat.messages[: chat.replies[0]]), chat.tools


def _role(turn: Any) -> str | None:
    said = turn.get("role", turn.get("from")) if isinstance(turn, dict) else None
    return ROLES.get(said) if isinstance(said, str) else None
