"""Fuzzes one target guided by coverage, where atheris is installed.

    python tests/fuzz/guided.py TARGET --seconds 60

It learns which inputs reach new lines of ours, and goes on from those. Ends with the first input that leads to another
error than those a user is meant to read, which is written to the present folder. atheris is none of the project's
dependencies.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ctr"]):
    from worker import TARGETS

    from ctr.io.errors import InputError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=list(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()
    target = TARGETS[arguments.target]
    with tempfile.TemporaryDirectory(prefix="ctr-fuzz-") as made:
        folder, corpus = Path(made) / "files", Path(made) / "corpus"
        folder.mkdir()
        corpus.mkdir()
        for number, seed in enumerate(target.prepare(folder)):
            (corpus / str(number)).write_bytes(seed)

        def parse(content: bytes) -> None:
            try:
                target.parse(folder, content)
            except InputError as error:
                if not str(error).strip():
                    raise
            except OSError as error:
                # The command line says these in one line, too.
                if error.errno is None:
                    raise

        atheris.Setup([sys.argv[0], str(corpus), f"-max_total_time={arguments.seconds}"], parse)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
