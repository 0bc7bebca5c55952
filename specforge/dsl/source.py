"""In: files of training text, or of features. Out: the sources that documents come from, and `Mix`."""

from __future__ import annotations

from typing import Any, ClassVar

from specforge.dsl.chat_family import chat_family
from specforge.dsl.node import NodeRule, field, node
from specforge.dsl.rule import Fault, flag, reply_mark, some_nodes, text, weights, whole


def _one_template(value: Any) -> tuple[str, Fault] | None:
    """A family is a template with its own marks: nothing else may say the same."""
    if value.chat_family is None:
        return None
    too = [n for n in ("chat_template", "reply_header", "reply_end") if getattr(value, n) is not None]
    if not too:
        return None
    also = f"{' and '.join(too)} {'is' if len(too) == 1 else 'are'} given too"
    fix = f"leave out chat_family, or {' and '.join(too)}"
    return "chat_family", Fault(f"is {value.chat_family!r}, which has its own template and marks, and {also}", fix)


def _both_marks(value: Any) -> tuple[str, Fault] | None:
    if (value.reply_header is None) == (value.reply_end is None):
        return None
    given, missing = ("reply_header", "reply_end") if value.reply_end is None else ("reply_end", "reply_header")
    what = f"is {getattr(value, given)!r}, and {missing} is not given: a reply stands between the two"
    return given, Fault(what, f"add {missing}='...'")


@node
class Conversations:
    """Chats, rendered with the target tokenizer's own chat template; assistant turns are supervised.

    `path`: JSONL or a JSON array (also .gz), with OpenAI messages or ShareGPT turns; relative to the recipe.
    `max_length`: tokens of one document; longer ones are cut at the right. `max_rows`: rows read, None for all.
    `chat_template`: path of a Jinja file used instead of the tokenizer's own. `strict`: a row that cannot be used stops
    the run; else it is dropped, and the report counts it. `last_turn_only`: of several assistant turns only the last is
    supervised, for chats whose earlier replies are of another model, or that a template renders without their thinking.
    `preformatted`: rows are {"text": ...}, rendered by this chat template already and tokenised as they stand; what
    stands between the template's reply header and its end of turn is supervised.
    For a tokenizer whose template is missing, or does not tell which part of its text is a reply: `chat_family`, the
    name of a family of models that writes the chats instead ("llama3"); or `reply_header` and `reply_end`, the texts
    before and behind each reply. What stands between them is supervised, the end too.
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("chat-template-twice", "a chat family takes no other template and no marks", _one_template),
        NodeRule("reply-marks", "reply_header and reply_end are given together", _both_marks),
    )

    path: str = field(text("the path of a JSONL file"))
    max_length: int = field(whole(2), default=2048)
    max_rows: int | None = field(whole(), default=None, optional=True)
    chat_template: str | None = field(text("the path of a Jinja file"), default=None, optional=True)
    strict: bool = field(flag(), default=False)
    last_turn_only: bool = field(flag(), default=False)
    preformatted: bool = field(flag(), default=False)
    chat_family: str | None = field(chat_family(), default=None, optional=True)
    reply_header: str | None = field(reply_mark(), default=None, optional=True)
    reply_end: str | None = field(reply_mark(), default=None, optional=True)


@node
class Prompts:
    """Rows that are tokenised already: JSONL with `input_ids` and `loss_mask` (0 or 1) of equal length.

    `path`, `max_length`, `max_rows` and `strict` as for Conversations.
    """

    path: str = field(text("the path of a JSONL file"))
    max_length: int = field(whole(2), default=2048)
    max_rows: int | None = field(whole(), default=None, optional=True)
    strict: bool = field(flag(), default=False)


def _a_weight_each(value: Any) -> tuple[str, Fault] | None:
    if value.weights is None or len(value.weights) == len(value.sources):
        return None
    what = f"holds {len(value.weights)} and there are {len(value.sources)} sources"
    return "weights", Fault(what, f"give {len(value.sources)}, in the order of the sources")


@node
class Mix:
    """Several sources as one: `Mix([chats, code], weights=[1, 0.5])`.

    `weights`: how often an epoch reads each source, None for once: with 2 every document twice, with 0.5 half of them,
    chosen once for the run by its seed.
    """

    RULES: ClassVar[tuple[NodeRule, ...]] = (
        NodeRule("mix-weights", "a mix has a weight for each of its sources", _a_weight_each),
    )

    sources: tuple[Conversations | Prompts, ...] = field(some_nodes(Conversations, Prompts))
    weights: tuple[float, ...] | None = field(weights(), default=None, optional=True)

    @property
    def max_length(self) -> int:
        """Tokens of the longest document."""
        return max(source.max_length for source in self.sources)


@node
class Recorded:
    """Documents with their features, as a recipe with `record=` left them: no forward of the target is run.

    `path`: the folder that holds its manifest.json; relative to the recipe.
    """

    path: str = field(text("the folder of a recording"))


@node
class Ckpt:
    """Documents with their features that were captured elsewhere: data_N.ckpt (or .ckpt.gz), one document each.

    A recipe with `record=` makes a recording of them; the target is not run. A file is a dictionary of tensors:
    input_ids and loss_mask, aux_hidden_state (the policy's layers side by side) and hidden_state (the last one, after
    the norm). `path`: the folder above them, relative to the recipe. `max_length`: tokens of a document, at most.
    """

    path: str = field(text("a folder of .ckpt files"))
    max_length: int = field(whole(2), default=2048)


Source = Conversations | Prompts | Mix | Recorded | Ckpt
SOURCES = (Conversations, Prompts, Mix, Recorded, Ckpt)
TEXTS = (Conversations, Prompts)
# what becomes documents here
DOCUMENTS = (*TEXTS, Mix)


def files_of(source: Source) -> tuple[Any, ...]:
    """The sources that read a path: itself, or what a mix mixes."""
    return source.sources if isinstance(source, Mix) else (source,)
