"""Files given to an ingest, compared with what the log remembers: which are new, known or changed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ctr.io.files import file_sha256
from ctr.pipelines.ingest.state import HeldRows, IngestState, InputFile
from ctr.pipelines.rows.sources import SourceFile


@dataclass(frozen=True)
class Inputs:
    """Files that an ingest reads."""

    sources: list[SourceFile]  # numbered from 0
    # Whether all given files are in the log. They are read to verify that the log has their rows; beside new files,
    # known ones are left out.
    again: bool
    known: list[str]  # the names of the given files that are in the log
    changed: list[str]  # the names of files to read that were added before with other content
    continues: bool  # whether the lines of new files count from the end of those before
    first_line: int  # the lines before the first file
    first_lines: (
        list[int] | None
    )  # before each file that is read again; None: those of the files before it count
    held: HeldRows | None  # the rows that were held back and are merged with those of the files

    @property
    def held_files(self) -> dict[int, str]:
        """The files of the rows that were held back, by the numbers that these rows have."""
        files = {} if self.held is None else self.held.inputs
        return {int(number): files[number] for number in sorted(files, key=int)}

    @property
    def names(self) -> list[str]:
        """The names of all files with rows: those to read, then those of the rows that were held back."""
        return [*(source.name for source in self.sources), *self.held_files.values()]


def compare_inputs(given: Sequence[SourceFile], state: IngestState, append: bool) -> Inputs:
    """Finds out which of the given files are to be read; ``append``: more files will come."""
    known = {source.number: file for source in given if (file := _known(state, source)) is not None}
    again = bool(known) and len(known) == len(given)
    new = [source for source in given if source.number not in known]
    sources = list(given) if again else [replace(source, number=n) for n, source in enumerate(new)]
    before = set() if again else {file.name for file in state.inputs}
    continues = append or state.held is not None or (bool(known) and not again)
    return Inputs(
        sources=sources,
        again=again,
        known=[file.name for file in known.values()],
        changed=[source.name for source in sources if source.name in before],
        continues=continues,
        first_line=state.lines if continues else 0,
        first_lines=[known[source.number].first_line for source in given] if again else None,
        held=None if again and append else state.held,
    )


def _known(state: IngestState, source: SourceFile) -> InputFile | None:
    """The file as it was added to the log before; None: it was not, or it has changed."""
    size = source.path.stat().st_size
    alike = [file for file in state.inputs if (file.name, file.bytes) == (source.name, size)]
    sha256 = file_sha256(source.path) if alike else ""
    return next((file for file in alike if file.sha256 == sha256), None)
