"""Whether a search by weight sharing finds an optimum that is known, and what rejection does beside the penalty.

    python benchmarks/search_planted.py --out runs/planted [--rows 12000] [--seeds 10] [--set learners=1]

A world of seven features with effects of different sizes (``search_world.Planted``), one of them a noisy copy of the
strongest: alone it is worth more than any other, beside the original nothing. The search decides which features the
model has beside one that it always has; the target is what two of them cost, times ``--slack``, which is too small for
a third. So the optimum is the strongest and the second one without the copy, which is checked by the world's own
probabilities, without any training: ``margin`` is by how much the logloss of the next best candidate is higher. Each
seed is another world.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from search_world import PLANTED_BASE, PLANTED_SPACE, Planted

from ctr.config import apply_settings, parse_model
from ctr.search.config import SearchConfig
from ctr.search.cost import cost_of, counted
from ctr.search.space import Choice, Space, space_of
from ctr.search.supernet import search_supernet
from ctr.training.config import TrainConfig

BASE = parse_model(TrainConfig, PLANTED_BASE, "benchmark")


def features_of(space: Space, choice: Choice) -> set[str]:
    """The features that a candidate has of those that are decided on."""
    return {name.partition(".")[2] for name, has_it in space.values(choice).items() if has_it}


def search(
    log: Path, out: Path, controller: Mapping[str, Any], seed: int, slack: float, world: Planted
) -> dict[str, Any]:
    """One search, and how it ended."""
    space = space_of(parse_model(SearchConfig, {"space": PLANTED_SPACE}, "benchmark"))
    cost = cost_of(space, BASE, counted(log, "training"))
    planted = next(one for one in space.candidates() if features_of(space, one) == world.optimum)
    # counted for an example depend a little on which ids a batch has.
    target = 1.001 * slack * cost(planted)
    given = {"space": PLANTED_SPACE, "target": target, "seed": seed, "controller": dict(controller)}
    config = parse_model(SearchConfig, given, "benchmark")
    base = BASE.model_copy(update={"seed": seed})
    found = search_supernet(config, space, cost, base, log, out, lambda line: None)
    allowed = [one for one in space.candidates() if cost(one) <= target]
    losses = {one: world.logloss(features_of(space, one)) for one in allowed}
    first, second = sorted(losses.values())[:2]
    return {
        "planted": found.choice == planted,
        "is_optimum": losses[planted] == first,
        "margin": second - first,
        "regret": world.logloss(features_of(space, found.choice)) - first,
        "features": sorted(features_of(space, found.choice)),
        "cost": cost(found.choice) / target,
        "passes": found.passes,
    }


def line(mode: str, slack: float, runs: Sequence[dict[str, Any]]) -> str:
    """A row of the table."""
    above = sum(run["cost"] > 1 for run in runs)
    costs = np.mean([run["cost"] for run in runs])
    passes, regret = (np.mean([run[name] for run in runs]) for name in ("passes", "regret"))
    return (
        f"| {mode} | {slack:g} | {sum(run['planted'] for run in runs)} of {len(runs)} | {above} | {costs:.2f} | "
        f"{regret:.4f} | {passes:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--slack", type=float, nargs="+", default=[1.0, 1.2])
    parser.add_argument("--modes", nargs="+", default=["rejection", "penalty"])
    parser.add_argument("--set", action="append", default=[], help="of the controller, key=value")
    arguments = parser.parse_args()
    changes = apply_settings({}, arguments.set)
    names = "-".join([str(arguments.rows), *arguments.set])
    arguments.out.mkdir(parents=True, exist_ok=True)
    lines = [
        "| mode | target over the optimum's cost | optimum found | above target | cost over target | regret | passes |",
        "|---|---|---|---|---|---|---|",
    ]
    margins = []
    for slack in arguments.slack:
        for mode in arguments.modes:
            runs = []
            for seed in range(1, arguments.seeds + 1):
                kept = arguments.out / f"{names}-{mode}-{slack:g}-{seed}.json"
                if not kept.exists():
                    world = Planted(arguments.rows, seed)
                    with tempfile.TemporaryDirectory() as folder:
                        log = world.publish(Path(folder) / "log")
                        run = search(log, Path(folder) / "out", {**changes, "mode": mode}, seed, slack, world)
                    kept.write_text(json.dumps(run))
                runs.append(json.loads(kept.read_text()))
            margins += [run["margin"] for run in runs if run["is_optimum"]]
            if not all(run["is_optimum"] for run in runs):
                lines.append(f"(of {mode}, {slack:g}: in some worlds another candidate is better)")
            lines.append(line(mode, slack, runs))
    lines.append(f"\nmargin to the second best: {min(margins):.4f} to {max(margins):.4f}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
