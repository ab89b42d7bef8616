"""Convergence of dense-weight optimizers in a single pass over a simulated log: who needs fewer steps?

    python benchmarks/convergence.py --out runs/convergence [--mind LOG]

AdaGrad, AdaGrad + Nesterov, Shampoo and Shampoo + Nesterov at batches of 512 to 32768, or the ``--optimizers`` that are
named: among them Adam, Muon, Shampoo with exponents 1/4, SOAP, KL-Shampoo, K-FAC and Adafactor. For each batch size,
2048 and 8192 first:

1. *Sweep*: dense rate, embedding rate and initial accumulator of every optimizer by one rule with equal
   numbers of tries (convergence_search.py), on a short log, by the excess of its last half.
2. *Confirmation*: the winner, and it with its dense rate doubled and halved, on a long log of another world
   with a seed of its own, and then up to three further tries beside the best so far, in dense and embedding
   rate; the best of them with further seeds. From these runs come the excess (whole
   pass, last half), and the steps to a baseline's final excess (convergence_curves.py says how).
3. *Ablations* of Shampoo + Nesterov on the short log with another seed.
4. With ``--mind``, the four on a real log at equal steps, tuned on its first half (convergence_mind.py).

The same command again goes on after the last finished run. ``--report`` prints the tables of what is there,
also while another process computes.
The excess is KL(truth || prediction), in nats x 1000; intervals are over queries (jackknife, 95%).
"""

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from convergence_campaign import Campaign
from convergence_mind import MindCampaign, mind_report
from convergence_report import simulated_report
from convergence_settings import OPTIMIZERS, PLANS, Plan
from convergence_store import Runner, Store

from ctr.config import apply_settings

STAGES = ("simulated", "mind")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Two at a time would slow each other down and take each other's run directory."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"{folder}: another process is at work there") from None
        yield


def chosen_plan(arguments: argparse.Namespace) -> Plan:
    """The plan of the command line."""
    plan = PLANS[arguments.plan]
    batches = tuple(b for b in plan.batches if b in arguments.batches) if arguments.batches else plan.batches
    return replace(
        plan,
        batches=batches,
        ablation_batches=tuple(batch for batch in plan.ablation_batches if batch in batches),
        seeds=arguments.seeds or plan.seeds,
        optimizers=tuple(arguments.optimizers or plan.optimizers),
        tries=arguments.tries or plan.tries,
        limit=max(plan.limit, arguments.tries or plan.tries),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/convergence"), help="where results are kept")
    parser.add_argument("--mind", type=Path, help="a log made by `ctr ingest mind`")
    parser.add_argument(
        "--optimizers", nargs="+", choices=OPTIMIZERS, help="those that are compared; by default four"
    )
    parser.add_argument("--only", choices=STAGES, help="simulated logs or MIND alone")
    parser.add_argument("--batches", type=_numbers, help="of the simulated logs: 2048,8192")
    parser.add_argument("--seeds", type=_numbers, help="of the confirmation: 2,3")
    parser.add_argument("--tries", type=int, help="of each optimizer at each batch size")
    parser.add_argument(
        "--shampoo", nargs="+", default=[], metavar="KEY=VALUE", help="options of all Shampoo runs"
    )
    parser.add_argument(
        "--plan",
        choices=PLANS,
        default="full",
        help="how large: half is a smaller network and log with more seeds; quick is tiny, and shows that it works",
    )
    parser.add_argument("--report", action="store_true", help="compute nothing, print what is there")
    arguments = parser.parse_args(argv)
    plan = chosen_plan(arguments)
    changes = apply_settings({}, arguments.shampoo)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    compute = not arguments.report
    with only_process(arguments.out) if compute else nullcontext():
        store = Store(arguments.out, write=compute)
        runner = Runner(store)
        texts = []
        if arguments.only != "mind":
            results = Campaign(plan, runner, compute, changes, say).run()
            texts.append(simulated_report(results, plan, store))
        if arguments.mind is not None and arguments.only != "simulated":
            mind = MindCampaign(arguments.mind, store, compute, changes, say, arguments.plan == "quick")
            texts.append(mind_report(mind.run(), store))
    print("\n\n".join(texts))


if __name__ == "__main__":
    main()
