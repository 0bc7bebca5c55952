"""In: the delimiters of the common chat models. Out: `FAMILIES`, each of which writes a chat template of its own.

For tokenizers whose own template is missing, or tells by neither generation markers nor growing prefixes what the
assistant said. The delimiters are facts of the models' tokenizers.
"""

from __future__ import annotations

import json

import attrs

from specforge.dsl.rule import Fault, Rule, nearest, shown


@attrs.frozen
class ChatFamily:
    """How the models of a family write a chat.

    `begin` stands before everything. `system` and `user`: what stands before and behind such a turn; system None: its
    text begins the first user turn. A reply is `header`, then the supervised [thinking] `says` content `end`, then
    `after`. `thinking`: what stands before and behind the reasoning, None where the family has none. `unthought`: not
    supervised, before a reply to the last question that came without reasoning. `unthought_earlier`: the
    same before a reply to an earlier question, whose reasoning is never shown. `last_end`: of the last reply, where it
    is another. `trimmed`: white space around a text is taken off.
    """

    user: tuple[str, str]
    header: str
    end: str
    system: tuple[str, str] | None = None
    begin: str = ""
    after: str = ""
    says: str = ""
    thinking: tuple[str, str] | None = None
    unthought: str = ""
    unthought_earlier: str = ""
    last_end: str | None = None
    trimmed: bool = False

    @property
    def template(self) -> str:
        """The family as Jinja text with generation markers. It raises on tools, and on thinking it cannot write.

        A reply whose thinking is left out, as these models do for turns before the last question, is not marked: the
        target did not say it like that. Where all replies are asked for, such a row is a fault.
        """
        said = "m.content | trim" if self.trimmed else "m.content"
        end = _literal(self.end)
        if self.last_end is not None:
            end = f"({_literal(self.last_end)} if loop.last else {end})"
        reply = f"{_literal(self.says)} + ({said}) + {end}"
        marked = _marked(reply)
        thought = "{{ raise_exception('this chat family writes no thinking') }}"
        if self.thinking is not None:
            before, behind = map(_literal, self.thinking)
            thought = (
                f"{{% if loop.index0 < ns.asked %}}{{{{ {_literal(self.unthought_earlier)} + {reply} }}}}"
                f"{{% else %}}{_marked(f'{before} + (m.reasoning_content | trim) + {behind} + {reply}')}{{% endif %}}"
            )
        without = f"{_literal(self.unthought)} if loop.index0 > ns.asked else {_literal(self.unthought_earlier)}"
        unthought = f"{{{{ {without} }}}}"
        system = f"{{% set ns.system = ({said}) + {_literal(chr(10) * 2)} %}}"
        if self.system is not None:
            system = f"{{{{ {_literal(self.system[0])} + ({said}) + {_literal(self.system[1])} }}}}"
        return "".join(
            (
                "{% set ns = namespace(asked=-1, system='') %}",
                "{% if tools %}{{ raise_exception('a chat family writes no tools') }}{% endif %}",
                "{% for m in messages %}{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}",
                "{% endfor %}",
                f"{{{{ {_literal(self.begin)} }}}}",
                "{% for m in messages %}",
                "{% if m.role == 'tool' or m.tool_calls %}",
                "{{ raise_exception('a chat family writes no tool calls') }}",
                f"{{% elif m.role == 'system' %}}{system}",
                f"{{% elif m.role == 'user' %}}{{{{ {_literal(self.user[0])} + ns.system + ({said})",
                f" + {_literal(self.user[1])} }}}}{{% set ns.system = '' %}}",
                f"{{% else %}}{{{{ {_literal(self.header)} }}}}",
                f"{{% if m.reasoning_content %}}{thought}{{% else %}}{unthought}{marked}{{% endif %}}",
                f"{{{{ {_literal(self.after)} }}}}{{% endif %}}{{% endfor %}}",
                f"{{% if add_generation_prompt %}}{{{{ {_literal(self.header)} }}}}{{% endif %}}",
            )
        )


def _literal(text: str) -> str:
    """A text as Jinja writes it; JSON's escapes are Jinja's too."""
    return json.dumps(text)


def _marked(expression: str) -> str:
    return f"{{% generation %}}{{{{ {expression} }}}}{{% endgeneration %}}"


_CHATML = ChatFamily(
    system=("<|im_start|>system\n", "<|im_end|>\n"),
    user=("<|im_start|>user\n", "<|im_end|>\n"),
    header="<|im_start|>assistant\n",
    end="<|im_end|>",
    after="\n",
)
_THINK = ("<think>\n", "\n</think>\n\n")
_DEEPSEEK = ChatFamily(
    begin="<｜begin▁of▁sentence｜>",
    system=("", ""),
    user=("<｜User｜>", ""),
    header="<｜Assistant｜>",
    end="<｜end▁of▁sentence｜>",
)
_PHI = ChatFamily(
    system=("<|system|>\n", "<|end|>\n"),
    user=("<|user|>\n", "<|end|>\n"),
    header="<|assistant|>\n",
    end="<|end|>",
    after="\n",
)

FAMILIES: dict[str, ChatFamily] = {
    "llama3": ChatFamily(
        begin="<|begin_of_text|>",
        system=("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
        user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
        header="<|start_header_id|>assistant<|end_header_id|>\n\n",
        end="<|eot_id|>",
        trimmed=True,
    ),
    "llama4": ChatFamily(
        begin="<|begin_of_text|>",
        system=("<|header_start|>system<|header_end|>\n\n", "<|eot|>"),
        user=("<|header_start|>user<|header_end|>\n\n", "<|eot|>"),
        header="<|header_start|>assistant<|header_end|>\n\n",
        end="<|eot|>",
        trimmed=True,
    ),
    "chatml": _CHATML,
    "qwen": _CHATML,
    "qwen3": attrs.evolve(_CHATML, thinking=_THINK, unthought="".join(_THINK)),
    "phi3": _PHI,
    "phi4": ChatFamily(
        system=("<|im_start|>system<|im_sep|>", "<|im_end|>"),
        user=("<|im_start|>user<|im_sep|>", "<|im_end|>"),
        header="<|im_start|>assistant<|im_sep|>",
        end="<|im_end|>",
    ),
    "phi4-mini": ChatFamily(
        system=("<|system|>", "<|end|>"), user=("<|user|>", "<|end|>"), header="<|assistant|>", end="<|end|>"
    ),
    "gemma": ChatFamily(
        begin="<bos>",
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        header="<start_of_turn>model\n",
        end="<end_of_turn>",
        after="\n",
        trimmed=True,
    ),
    "deepseek-v3": _DEEPSEEK,
    "deepseek-r1-distill": attrs.evolve(_DEEPSEEK, thinking=_THINK),
    # A reply has no end of its own: the next turn's tag ends it, and the assistant does not say that one.
    "glm": ChatFamily(
        begin="[gMASK]<sop>",
        system=("<|system|>", ""),
        user=("<|user|>", ""),
        header="<|assistant|><think>",
        end="",
        thinking=("", "</think>"),
        unthought="</think>",
        unthought_earlier="</think>",
        trimmed=True,
    ),
    "kimi-k2": ChatFamily(
        system=("<|im_system|>system<|im_middle|>", "<|im_end|>"),
        user=("<|im_user|>user<|im_middle|>", "<|im_end|>"),
        header="<|im_assistant|>assistant<|im_middle|>",
        end="<|im_end|>",
    ),
    "gpt-oss": ChatFamily(
        begin=(
            "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
            "Knowledge cutoff: 2024-06\nCurrent date: 2025-01-01\n\nReasoning: medium\n\n"
            "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
        ),
        system=("<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>"),
        user=("<|start|>user<|message|>", "<|end|>"),
        header="<|start|>assistant",
        says="<|channel|>final<|message|>",
        end="<|end|>",
        last_end="<|return|>",
        thinking=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    ),
}


def chat_family() -> Rule:
    """The name of a chat family."""

    def check(name: str, value: object) -> Fault | None:
        if isinstance(value, str) and value in FAMILIES:
            return None
        return Fault(f"is {shown(value)}, and there is no such family of chat models", nearest(str(value), FAMILIES))

    return Rule("chat-family", "a chat family is one of those that are known", check)
