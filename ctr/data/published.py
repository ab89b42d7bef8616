"""The published intervals of a log that grows, each read once however often one looks."""

from collections.abc import Sequence
from pathlib import Path

from ctr.data.log import Manifest, read_manifests
from ctr.io.files import names_in


class PublishedIntervals:
    """Looks at the names of the manifests each time, and into those alone that it has not read before.

    So a manifest that was written over is seen for what it is only by another reader; one that vanished is gone.
    """

    def __init__(self, folder: Path, known: Sequence[Manifest] = ()) -> None:
        """Reads nothing. ``known``: manifests of the log in ``folder`` that were read already."""
        self._folder = folder
        self._names: frozenset[str] = frozenset()
        self._manifests = known

    def read(self) -> Sequence[Manifest]:
        """All of them in order of time; the same object as before when there are no others.

        Raises:
            InputError: see ``ctr.data.log.read_manifests``.
        """
        names = frozenset(names_in(self._folder / "manifests", ".json"))
        if names != self._names:
            known = {(manifest.start, manifest.end): manifest for manifest in self._manifests}
            self._manifests = read_manifests(self._folder, known)
            # A manifest that appeared in between is in both or in the next look's names alone, which is harmless.
            self._names = names
        return self._manifests
