"""Trains on logical devices, in a process of its own: they must be there before TensorFlow computes anything.

    python chips_run.py LOG CONFIG RUN DEVICE [MAX_EXAMPLES]

With a number of examples it stops there, with a checkpoint.
"""

import sys
from pathlib import Path

from ctr.workers.chips import open_chips

if __name__ == "__main__":
    log, config, run, device, *stop = sys.argv[1:]
    chips = open_chips(device)
    from ctr.config import load_model
    from ctr.training.config import TrainConfig
    from ctr.training.loop import open_session

    with open_session(
        Path(log), load_model(TrainConfig, Path(config), "config"), Path(run), chips=chips
    ) as session:
        if stop:
            session.advance(stop=lambda: session.run.position.examples >= int(stop[0]))
            session.save()
        else:
            session.finish()
