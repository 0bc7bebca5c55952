"""In: a checkpoint and a file of prompts. Out: on standard output the report of real speculative decoding."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

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
        )
    )
    print(json.dumps(report.json(), indent=1) if args.json else report.text())
    if report.unexplained:
        print(f"specforge eval: {report.unexplained} outputs are not the target's own, see above", file=sys.stderr)
        return 1
    return 0
