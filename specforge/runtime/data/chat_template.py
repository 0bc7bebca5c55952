"""In: a tokenizer and perhaps Jinja text. Out: `ChatTemplate`, which renders messages, always the same on any day."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from specforge.runtime.data.row_fault import RowFault

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
# Some templates write the date of the day: the same recipe would give other tokens tomorrow. A macro of the same name
# stands before the global function, and its formats are those that such templates ask for.
FIXED_DATE = (
    "{%- macro strftime_now(format) -%}"
    "{%- if format == '%Y-%m-%d' -%}2025-01-01{%- else -%}01 Jan 2025{%- endif -%}"
    "{%- endmacro -%}"
)


class ChatTemplate:
    """The chat template of a run: `override` (Jinja text) or the tokenizer's own.

    Raises ValueError where there is none, where it is no Jinja, or where the tokenizer cannot tell offsets.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, override: str | None = None) -> None:
        if not tokenizer.is_fast:
            raise ValueError(
                f"the tokenizer is a {type(tokenizer).__name__}, which does not tell where in the text a token stands; "
                "save a fast one (tokenizer.json) into the target's folder"
            )
        if override is None and not tokenizer.chat_template:
            raise ValueError(
                "the tokenizer has no chat template; give one: Conversations(..., chat_template='...'), or name the "
                "family of the model: chat_family='...'"
            )
        text = tokenizer.get_chat_template(override)
        self.tokenizer = tokenizer
        self.text = FIXED_DATE + text if "strftime_now" in text else text
        self.has_markers = GENERATION.search(text) is not None

    @cached_property
    def control(self) -> re.Pattern[str]:
        """Matches any special token of the tokenizer."""
        added = self.tokenizer.added_tokens_decoder.values()
        texts = {t.content for t in added if t.special} | set(self.tokenizer.all_special_tokens)
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")

    @cached_property
    def writes_header(self) -> bool:
        """Whether `reply_header` adds anything: the template knows how an assistant turn begins."""
        question = [{"role": "user", "content": "?"}]
        try:
            return self.render(question) != self.render(question, reply_header=True)
        except RowFault:
            return True

    def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), reply_header: bool = False
    ) -> str:
        """The text of `messages`; with `reply_header`, up to where an assistant turn begins to speak.

        Raises RowFault where the template raises on them.
        """
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                chat_template=self.text,
                add_generation_prompt=reply_header,
                tokenize=False,
            )
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template is not Jinja: {error}; correct chat_template") from None
        except Exception as error:  # a template is a program of someone else: anything may come out of it
            raise RowFault("template raised", f"{type(error).__name__}: {error}") from None

    def render_marked(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text of `messages` and the character spans between the template's generation markers."""
        try:
            texts, spans = render_jinja_template(
                conversations=[list(messages)],
                tools=list(tools) or None,
                chat_template=self.text,
                return_assistant_tokens_mask=True,
                **self.tokenizer.special_tokens_map,
            )
        except Exception as error:  # as above
            raise RowFault("template raised", f"{type(error).__name__}: {error}") from None
        return texts[0], [(start, end) for start, end in spans[0]]
