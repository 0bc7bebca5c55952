"""In: files of training text, or of features. Out: the sources: `Conversations`, `Prompts`, `Recorded`, `Ckpt`."""

from __future__ import annotations

from specforge.dsl.node import field, node
from specforge.dsl.rule import flag, text, whole


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
    """

    path: str = field(text("the path of a JSONL file"))
    max_length: int = field(whole(2), default=2048)
    max_rows: int | None = field(whole(), default=None, optional=True)
    chat_template: str | None = field(text("the path of a Jinja file"), default=None, optional=True)
    strict: bool = field(flag(), default=False)
    last_turn_only: bool = field(flag(), default=False)
    preformatted: bool = field(flag(), default=False)


@node
class Prompts:
    """Rows that are tokenised already: JSONL with `input_ids` and `loss_mask` (0 or 1) of equal length.

    `path`, `max_length`, `max_rows` and `strict` as for Conversations.
    """

    path: str = field(text("the path of a JSONL file"))
    max_length: int = field(whole(2), default=2048)
    max_rows: int | None = field(whole(), default=None, optional=True)
    strict: bool = field(flag(), default=False)


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


Source = Conversations | Prompts | Recorded | Ckpt
SOURCES = (Conversations, Prompts, Recorded, Ckpt)
TEXTS = (Conversations, Prompts)
