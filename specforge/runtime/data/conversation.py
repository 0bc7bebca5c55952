"""In: a row in the OpenAI or the ShareGPT form. Out: a `Conversation`; what is wrong with the row is a `RowFault`."""

from __future__ import annotations

import itertools
import json
from typing import Any

import attrs

from specforge.runtime.data.row_fault import RowFault

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_call": "assistant",
}
CALL = "function_call"  # ShareGPT's turn that is a call: its value is JSON
TEXTS = ("reasoning_content", "name", "tool_call_id")
CARRIED = ("tool_calls", *TEXTS)


@attrs.frozen
class Conversation:
    """What a chat template renders. `finished[i]`: whether the i-th reply came to its own end (else it was cut)."""

    messages: tuple[dict[str, Any], ...]
    finished: tuple[bool, ...]
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def replies(self) -> tuple[int, ...]:
        """Where in `messages` the assistant speaks."""
        return tuple(i for i, m in enumerate(self.messages) if m["role"] == "assistant")


def conversation(value: Any) -> Conversation:
    """Normalise a row: {"messages" or "conversations": turns}, a turn being {role, content} or {from, value}.

    Kept: system turns (also a row's own "system" text), tools (a list, or JSON text of one), tool calls (also
    ShareGPT's function_call and observation turns), reasoning.
    Content in parts is joined where all parts are text.
    Raises RowFault where the row is not a chat that a reply can be learned from.
    """
    if not isinstance(value, dict):
        raise RowFault("row is not an object", f"it is {type(value).__name__}")
    turns = value.get("messages", value.get("conversations"))
    if turns is not None and not isinstance(turns, list):
        raise RowFault("turns are not a list", f"they are {type(turns).__name__}")
    if not turns:
        raise RowFault("empty row", f"no messages or conversations; its keys are {sorted(map(str, value))}")
    messages = [_message(turn, number) for number, turn in enumerate(turns, start=1)]
    system = value.get("system")
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    _check_order([m["role"] for m in messages])
    replies = sum(m["role"] == "assistant" for m in messages)
    return Conversation(tuple(messages), _finished(value, replies), _tools(value.get("tools")))


def _message(turn: Any, number: int) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise RowFault("turn is not an object", f"turn {number} is {type(turn).__name__}")
    said = turn.get("role", turn.get("from"))
    role = ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise RowFault("unknown role", f"turn {number} has {said!r}; known are {', '.join(ROLES)}")
    message = {"role": role, **{key: turn[key] for key in CARRIED if turn.get(key)}}
    for key in TEXTS:
        if not isinstance(message.get(key, ""), str):
            raise RowFault(f"{key} is not a string", f"turn {number} ({role}) has {type(message[key]).__name__}")
    content = _joined(turn.get("content", turn.get("value")))
    if said == CALL:
        message["tool_calls"], content = _called(content, number), ""
    elif "tool_calls" in message:
        message["tool_calls"] = _tool_calls(message["tool_calls"], number)
        content = "" if content is None else content
    if content is None:
        raise RowFault("content is null", f"turn {number} ({role})")
    if not isinstance(content, str):
        raise RowFault("content is not a string", f"turn {number} ({role}) is {type(content).__name__}")
    if role == "assistant" and not content.strip() and "tool_calls" not in message:
        raise RowFault("empty reply", f"turn {number}")
    return {**message, "content": content}


def _joined(content: Any) -> Any:
    """OpenAI's list of parts as one text, where all of them are text."""
    if not isinstance(content, list) or not content:
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    whole = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
    return "".join(texts) if whole else content


def _check_order(roles: list[str]) -> None:
    spoken = roles[1:] if roles[0] == "system" else roles
    if not spoken:
        raise RowFault("no assistant turn", "only a system turn")
    if "system" in spoken:
        raise RowFault("system turn is not first", f"turns are {', '.join(roles)}")
    if spoken[0] == "assistant":
        raise RowFault("begins with assistant")
    if spoken[0] == "tool":
        raise RowFault("tool turn without a call before it")
    for before, after in itertools.pairwise(spoken):
        if before == after != "tool":
            raise RowFault("repeated role", f"two {after} turns in a row")
        if after == "tool" and before == "user":
            raise RowFault("tool turn without a call before it")
    if "assistant" not in spoken:
        raise RowFault("no assistant turn")


def _finished(value: dict[str, Any], replies: int) -> tuple[bool, ...]:
    finished = value.get("finished")
    if finished is None:
        return (True,) * replies
    if not isinstance(finished, list) or len(finished) != replies or not all(isinstance(f, bool) for f in finished):
        raise RowFault("finished does not fit the replies", f"{replies} replies, finished is {finished!r}")
    return tuple(finished)


def _tools(tools: Any) -> tuple[dict[str, Any], ...]:
    if not tools or (isinstance(tools, str) and not tools.strip()):
        return ()
    given = _json(tools) if isinstance(tools, str) else tools
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise RowFault("tools are not a list of objects", f"{str(tools)[:60]!r}")
    return tuple(given)


def _tool_calls(calls: Any, number: int) -> list[dict[str, Any]]:
    """Templates write the arguments as JSON themselves: OpenAI's arguments, which are JSON text, become objects."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RowFault("tool calls are not a list of objects", f"turn {number}")
    return [
        {**call, "function": _with_arguments(call["function"])} if isinstance(call.get("function"), dict) else call
        for call in calls
    ]


def _called(content: Any, number: int) -> list[dict[str, Any]]:
    given = _json(content) if isinstance(content, str) else content
    calls = given if isinstance(given, list) else [given]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise RowFault("function call is not JSON with a name", f"turn {number}: {str(content)[:60]!r}")
    return _tool_calls([{"type": "function", "function": call} for call in calls], number)


def _with_arguments(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    parsed = _json(arguments) if isinstance(arguments, str) else None
    return function if parsed is None else {**function, "arguments": parsed}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
