"""In: a checkpoint and a file of prompts. Out: on standard output the report of real speculative decoding."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from specforge.runtime.decode.choice import Sampling
from specforge.runtime.decode.evaluate import EvalRequest, evaluate


def main(args: argparse.Namespace) -> int:
    report = evaluate(
        EvalRequest(
            checkpoint=Path(args.checkpoint),
            prompts=Path(args.prompts),
            max_new_tokens=args.max_new_tokens,
            draft_tokens=args.draft_tokens,
            batch_size=args.batch_size,
            limit=args.limit,
            untrained=args.untrained,
            device=args.device,
            dtype=args.dtype,
            sampling=_sampling(args),
        )
    )
    print(json.dumps(report.json(), indent=1) if args.json else report.text())
    if not report.unexplained:
        return 0
    print(f"specforge eval: {report.unexplained} outputs are not the target's own, see above", file=sys.stderr)
    if report.setup.dtype == "float32":
        return 1
    print(
        f"    {report.setup.dtype} rounds differently in batches of other shapes; --dtype float32 tells",
        file=sys.stderr,
    )
    return 0


def _sampling(args: argparse.Namespace) -> Sampling | None:
    if args.temperature == 0.0:
        if args.top_p != 1.0 or args.seed != 0:
            raise ValueError("--top-p and --seed are for sampled output; give a --temperature above 0 with them")
        return None
    return Sampling(args.temperature, args.top_p, args.seed)
