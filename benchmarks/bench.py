"""How fast it is, beside what people use and beside what the machine could do. `make bench` runs it whole.

    python benchmarks/bench.py [--only step,limit] [--rounds 6] [--json runs/bench.json] [--quick] [--no-compile]

Arms of a comparison take turns after a first turn of each; a ratio is the median over the rounds of the ratio within a
round, with its quartiles. At the end a table says which targets are met. docs/speed.md says what each number means.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from parts import end_to_end, ids, limit, memory, metrics, objective, profile, scaling, shampoo, start, step
from parts.setting import Setting
from targets import judge, targets_report

from ctr.training.config import TrainConfig
from ctr.training.device import describe_environment

PARTS = {
    "step": step,
    "limit": limit,
    "end_to_end": end_to_end,
    "profile": profile,
    "scaling": scaling,
    "shampoo": shampoo,
    "objective": objective,
    "metrics": metrics,
    "start": start,
    "memory": memory,
    "ids": ids,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_parts, default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=Setting.rounds, help="turns of each arm")
    parser.add_argument(
        "--quick", action="store_true", help="a small run of every part, whose numbers mean nothing"
    )
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--json", type=Path, default=Path("runs/bench.json"), help="where the numbers go")
    arguments = parser.parse_args(argv)
    setting = Setting(1 if arguments.quick else arguments.rounds, arguments.quick, not arguments.no_compile)
    found: dict[str, Any] = {"environment": describe_environment(TrainConfig()), "rounds": setting.rounds}
    for name in arguments.only:
        begun = time.perf_counter()
        found[name] = PARTS[name].measure(setting)
        print(f"## {name}\n\n{PARTS[name].report(found[name])}\n", flush=True)
        found[name]["seconds_taken"] = time.perf_counter() - begun
    found["targets"] = judge(found)
    print(f"## targets\n\n{targets_report(found['targets'])}", flush=True)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def _parts(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    return names


if __name__ == "__main__":
    main()
