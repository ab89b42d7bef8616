"""One worker of a run in which ids grow: what its part of the map takes at the end.

python benchmarks/studies/map_worker.py LOG CONFIG RUN
"""

import sys
from pathlib import Path

from processes import give

from ctr.config import load_model
from ctr.training.config import TrainConfig
from ctr.training.ids.id_map import DIVIDED_ARRAYS
from ctr.training.session import Process, open_session
from ctr.workers.local import join
from ctr.workers.seats import read_place


def main(log: Path, config: Path, run: Path) -> dict[str, int]:
    """Trains; returns the ids that this worker keeps, the entries of its arrays, and their bytes."""
    content = load_model(TrainConfig, config, "config")
    with open_session(log, content, run, process=Process(join(read_place(), 600.0))) as session:
        session.advance(partial=True)
        maps = session.run.state.tables.id_maps.values()
        arrays = [
            array for id_map in maps for name, array in id_map.to_arrays().items() if name in DIVIDED_ARRAYS
        ]
        return {
            "ids": sum(len(id_map.occupants().rows) for id_map in maps),
            "entries": sum(map(len, arrays)),
            "bytes": sum(id_map.nbytes for id_map in maps),
        }


if __name__ == "__main__":
    give(main(*(Path(argument) for argument in sys.argv[1:])))
