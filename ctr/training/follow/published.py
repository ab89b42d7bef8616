"""What is published by now of logs and sidecars that grow, read again and again at little cost."""

from bisect import bisect_left, bisect_right
from dataclasses import replace

from ctr.data.log import Manifest, PublishedPartitions
from ctr.data.sidecar import sidecar_folder
from ctr.training.inputs import Inputs
from ctr.training.preflight import Log


class PublishedInputs:
    """The inputs of a run as they grow.

    Attributes:
        inputs: all that is published.
        readable: the same without the partitions of the log from the first one on that waits for a sidecar.
        awaited: the file that it waits for; None: nothing.
    """

    def __init__(self, inputs: Inputs, wait_for_sidecars: bool) -> None:
        """Begins with these inputs. ``wait_for_sidecars``: else all that is published counts as readable."""
        self.inputs = inputs
        self._waits = wait_for_sidecars
        self._ready = 0
        self.awaited: str | None = None
        logs = [inputs.log, *inputs.constraint_logs.values()]
        if inputs.teacher_log is not None:
            logs.append(inputs.teacher_log)
        self._published = [(log, PublishedPartitions(log.path, log.manifests)) for log in logs]
        self.readable = self._read_ready()

    def refresh(self) -> bool:
        """Finds what was published since the last call; returns whether there is more to read of anything.

        Raises:
            InputError: a malformed manifest.
        """
        before, ready = self.inputs, self._ready
        logs = [self._grown(log, published) for log, published in self._published]
        if any(log is not known for log, (known, _) in zip(logs, self._published, strict=True)):
            self._published = [
                (log, published) for log, (_, published) in zip(logs, self._published, strict=True)
            ]
            constraint_logs = dict(zip(self.inputs.constraint_logs, logs[1:], strict=False))
            teacher_log = logs[-1] if self.inputs.teacher_log else None
            self.inputs = replace(
                self.inputs, log=logs[0], constraint_logs=constraint_logs, teacher_log=teacher_log
            )
        self.readable = self._read_ready()
        return self.inputs is not before or self._ready != ready

    @staticmethod
    def _grown(log: Log, published: PublishedPartitions) -> Log:
        manifests = published.read()
        return log if manifests is log.manifests else Log(log.path, manifests)

    def _read_ready(self) -> Inputs:
        manifests = self.inputs.log.manifests
        if not self._waits:
            self._ready = len(manifests)
            return self.inputs
        # What was ready stays so; if a log has lost partitions, that is refused elsewhere.
        self._ready = min(self._ready, len(manifests))
        self.awaited = None
        while self._ready < len(manifests) and self.awaited is None:
            self.awaited = self._missing_file(manifests[self._ready])
            self._ready += self.awaited is None
        if self._ready == len(manifests):
            return self.inputs
        return replace(self.inputs, log=Log(self.inputs.log.path, manifests[: self._ready]))

    def _missing_file(self, partition: Manifest) -> str | None:
        """Returns the first file that has to be there before the sidecars say all that they will of a partition."""
        if not self.inputs.selects(partition):
            return None
        for log, name in self.inputs.sidecar_logs.values():
            if log.end < partition.end:
                return f"{log.path}, published until {partition.end}"
            first = bisect_right(log.manifests, partition.start, key=lambda manifest: manifest.end)
            last = bisect_left(log.manifests, partition.end, key=lambda manifest: manifest.start)
            for manifest in log.manifests[first:last]:
                path = sidecar_folder(log.path, name) / f"{manifest.name}.json"
                if manifest.rows and not path.is_file():
                    return str(path)
        return None
