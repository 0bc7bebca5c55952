"""In: nothing. Out: tiny_prompts.jsonl and tiny_heldout.jsonl, rows of token ids that follow a second-order pattern.

Standard library only; the same bytes on any machine. Usage: python make_tiny.py [FOLDER], default: beside this file.
"""

import json
import random
import sys
from pathlib import Path

VOCAB_SIZE = 256
COMMON = 96  # ids that the pattern uses: a draft vocabulary smaller than the target's covers nearly everything
SHORTEST, LONGEST = 24, 64
PROMPT = 8  # tokens without loss at the beginning, about
FILES = {"tiny_prompts.jsonl": (96, 1), "tiny_heldout.jsonl": (16, 2)}


def below(draw: random.Random, count: int) -> int:
    """A number in [0, count). Made of random(), the one method whose values Python promises to keep."""
    return int(draw.random() * count)


def following(before: int, last: int, draw: random.Random) -> int:
    """The next id after two: mostly one fixed id for (before % 4, last), sometimes its neighbour, seldom any id."""
    usual = (last * 37 + (before % 4) * 11 + 5) % COMMON
    chance = draw.random()
    if chance < 0.85:
        return usual
    return (usual + 1) % COMMON if chance < 0.97 else below(draw, VOCAB_SIZE)


def row(number: int, draw: random.Random) -> dict:
    length = SHORTEST + below(draw, LONGEST - SHORTEST + 1)
    ids = [below(draw, COMMON), below(draw, COMMON)]
    while len(ids) < length:
        ids.append(following(ids[-2], ids[-1], draw))
    prompt = PROMPT - 2 + below(draw, 5)
    return {"id": f"tiny-{number:03d}", "input_ids": ids, "loss_mask": [0] * prompt + [1] * (length - prompt)}


def content(rows: int, seed: int) -> str:
    """The text of one file."""
    draw = random.Random(seed)
    return "".join(json.dumps(row(number, draw), separators=(",", ":")) + "\n" for number in range(rows))


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, (rows, seed) in FILES.items():
        (folder / name).write_text(content(rows, seed), encoding="utf-8", newline="\n")
