"""Where a run stands: what a checkpoint tells of it besides weights, metrics and files."""

from dataclasses import dataclass, field


@dataclass
class Position:
    """Where a run stands, and what went wrong on the way.

    Attributes:
        examples: rows of the log that are behind it as far as scoring goes, rejects included.
        learned: likewise as far as learning goes; less only under a label delay.
        others: likewise in each constraint log.
        batches: batches that were scored.
        trained_examples: good rows in batches that were learned from, also those of weight 0.
        trained_rows: those of them with a train weight above 0.
        skipped_steps: steps that changed nothing because the loss or a gradient was not finite.
        skipped_ranges: the rows [begin, end) of the log of the first such steps.
        rejected_rows: faulty rows of the log.
        read: good and faulty rows of the log that were read.
        others_rejected, others_read: likewise of each constraint log.
        nonfinite_predictions: rows whose prediction was not finite.
        scored_until: query time, in microseconds, and query id of the last row that was scored, rejects included.
        learned_until: likewise of the last row that was learned from.
        others_until: likewise in each constraint log.
        trained_before: by a ramp's name, examples that counted for it before this run began (``ctr.training.launch``).
    """

    examples: int = 0
    learned: int = 0
    others: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    trained_examples: int = 0
    trained_rows: int = 0
    skipped_steps: int = 0
    skipped_ranges: list[list[int]] = field(default_factory=list)
    rejected_rows: int = 0
    read: int = 0
    others_rejected: dict[str, int] = field(default_factory=dict)
    others_read: dict[str, int] = field(default_factory=dict)
    nonfinite_predictions: int = 0
    scored_until: list[int] | None = None
    learned_until: list[int] | None = None
    others_until: dict[str, list[int]] = field(default_factory=dict)
    trained_before: dict[str, int] = field(default_factory=dict)
