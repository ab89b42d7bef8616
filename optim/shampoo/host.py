"""Computes roots, or eigenbases, on the host in float64 while the device continues (FF fig. 3, PSO 4, alg. II).

``send`` hands the statistics that need a new root to threads, largest first; ``collect`` brings the roots
into use at the next exchange. Which roots, from what, and when they come into use depends on the step alone, never
on time. After a restart a round in flight is computed again, from statistics that stay unchanged between exchanges.
A root that fails, or is refused by its certificate, or lost with its thread, leaves the previous one.
"""

import concurrent.futures
import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ctr.io.blas import one_blas_thread
from ctr.optim.gradients import Present
from ctr.optim.shampoo.eigenbasis import eigenbasis
from ctr.optim.shampoo.layout import Factor
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.roots import Root, RootError, inverse_root

log = logging.getLogger(__name__)

Solve = Callable[..., Root]

# For every statistics matrix: whether its root is certified and from real statistics; whether its statistics were sent
# at the last exchange and the root is still out; by how much the statistics changed since the root was computed (sum of
# Frobenius norms); condition and residual of the root; the step of its statistics, and their smallest and largest
# eigenvalues, both 0 where the device computed the root.
STATUS = ("certified", "sent", "drift", "condition", "residual", "root_step", "smallest", "largest")

# Roots computed; not computed because the drift was small; refused or failed; lost with a thread; steps
# skipped because of a non-finite gradient; directions beyond the working precision, replaced by the
# grafted ones; and roots computed by the device, not the host.
COUNTERS = ("refreshed", "skipped", "failed", "lost", "nonfinite_steps", "overflowed", "device")

_CERTIFIED, _SENT, _DRIFT, _, _, _ROOT_STEP = range(STATUS.index("root_step") + 1)


@dataclass
class Round:
    """NumPy copies of the statistics and roots that the pipeline reads and changes.

    Attributes:
        totals: for each factor float64 [N, d, d], to be divided by ``divisor``.
        roots: for each factor [N, d, d]; replaced by new ones.
        status, counters: [len(STATUS), M] for M matrices of these factors, int64 [len(COUNTERS)]; updated in place.
        identity: [M], the multiple of the identity to add to each matrix's total before the division.
    """

    totals: list[np.ndarray]
    roots: list[np.ndarray]
    status: np.ndarray
    counters: np.ndarray
    divisor: float
    identity: np.ndarray


def _origin_of(step: int, state: Round) -> tuple[int, int, str]:
    """Returns the process, the step and a digest of the statistics that roots are computed from."""
    # Diagonals differ wherever statistics do, except by coincidence.
    digest = hashlib.sha256()
    for total in state.totals:
        digest.update(np.einsum("nii->ni", total).tobytes())
    return os.getpid(), step, digest.hexdigest()


class HostPipeline:
    """Computes the roots of ``factors`` in ``threads`` threads, by default one for each processor of this process.

    After ``patience`` seconds without any finished root, the rest of a round is canceled. Tests replace ``solve``.

    Attributes:
        seconds_waited, seconds_computing: seconds that steps waited for roots, and that threads spent on them, so far.
    """

    def __init__(
        self,
        factors: Sequence[Factor],
        options: ShampooOptions,
        threads: int | None = None,
        patience: float = 300.0,
        solve: Solve = inverse_root,
    ) -> None:
        self.factors, self.options, self.patience, self.solve = factors, options, patience, solve
        self.threads = threads or len(os.sched_getaffinity(0))
        self.seconds_waited = self.seconds_computing = 0.0
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._origin: tuple[int, int, str] | None = None  # of the futures that have not been collected
        self._futures: dict[int, concurrent.futures.Future[Root]] = {}
        self._places = [(f, i) for f, factor in enumerate(factors) for i in range(factor.count)]
        sizes = [factors[f].size for f, _ in self._places]
        self._largest_first = sorted(range(len(sizes)), key=lambda matrix: -sizes[matrix])

    def send(self, step: int, state: Round, present: Present = None) -> None:
        """Starts computing roots of present matrices whose statistics changed enough; marks these matrices as sent."""
        status = state.status
        status[_SENT] = 0
        for matrix, (f, i) in enumerate(self._places):
            if present is not None and not present[matrix]:
                if self.options.roots.identity and not status[_CERTIFIED, matrix]:
                    self._use_identity(matrix, 1.0, step, state)
                continue
            total, identity = state.totals[f][i], state.identity[matrix]
            # Not by BLAS, whose sums depend on its number of threads, and that on whether roots are computed.
            norm = float(np.sqrt(np.sum(np.square(total))))
            # No gradient yet, as in crosses that are still switched off: not a fault.
            if norm == 0 and not identity and not self.options.damps_zero:
                continue
            # Initial statistics decay even without a gradient.
            fades = norm == 0 and identity > 0 and self.options.beta2 < 1.0
            still = status[_DRIFT, matrix] <= self.options.roots.drift_bound * norm
            if status[_CERTIFIED, matrix] and still and not fades:
                self._count(state, matrix, "skipped")
                continue
            status[_SENT, matrix] = 1
        self._start(step, state)
        if self.options.roots.identity and self.options.roots.asynchronous:
            # The roots of initial statistics come into use where there is none yet (PSO alg. II).
            for matrix in map(int, np.flatnonzero(status[_CERTIFIED] == 0)):
                factor, initial = self.factors[self._places[matrix][0]], self.options.statistics.initial
                scale = 1.0 if factor.basis or not initial else initial ** (-1.0 / factor.order)
                self._use_identity(matrix, scale, step, state)

    def _count(self, state: Round, matrix: int, counter: str) -> None:
        if not self.factors[self._places[matrix][0]].is_copy:
            state.counters[COUNTERS.index(counter)] += 1

    def _use_identity(self, matrix: int, scale: float, step: int, state: Round) -> None:
        f, i = self._places[matrix]
        state.roots[f][i] = scale * np.eye(self.factors[f].size)
        state.status[_CERTIFIED, matrix], state.status[_ROOT_STEP, matrix] = 1, step

    def collect(self, sent_at: int, state: Round) -> None:
        """Puts to use the roots of the statistics sent at step ``sent_at``; waits for unfinished ones."""
        sent = np.flatnonzero(state.status[_SENT])
        if not len(sent):
            return
        begun = time.perf_counter()
        # After a restart, or after the variables were set to another step's, the roots are computed here.
        if self._origin != _origin_of(sent_at, state):
            self._start(sent_at, state)
        self._origin, lost = None, self._wait()
        for matrix in map(int, sent):
            self._use_root(matrix, lost, sent_at, state)
        state.status[_SENT] = 0
        self._futures = {}
        self.seconds_waited += time.perf_counter() - begun

    def _start(self, step: int, state: Round) -> None:
        if self._process != os.getpid():
            # Threads do not survive a fork.
            self._pool, self._process = None, os.getpid()
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(self.threads, "shampoo-roots")
        status = state.status
        self._origin, self._futures = _origin_of(step, state), {}
        for matrix in self._largest_first:
            if not status[_SENT, matrix]:
                continue
            f, i = self._places[matrix]
            # Copies: the caller's arrays may change or be freed while the threads read them.
            statistics = state.totals[f][i] / state.divisor
            statistics[np.diag_indices_from(statistics)] += state.identity[matrix] / state.divisor
            try:
                self._futures[matrix] = self._pool.submit(self._compute, self.factors[f], statistics)
            except RuntimeError as error:
                # The pool was shut down, or the system has no thread left. What was not sent is lost, and
                # the next round has a new pool.
                log.warning("roots from step %d cannot be computed: %s", step, error)
                self._pool = None
                break

    def _compute(self, factor: Factor, statistics: np.ndarray) -> Root:
        begun = time.perf_counter()
        # Roots in parallel, each on one processor, are faster than in sequence on all, and leave the step its threads.
        with one_blas_thread():
            if not statistics.any():
                # Only absolute damping is left.
                scale = 1.0 if factor.basis else self.options.epsilon ** (-1.0 / factor.order)
                root = Root(scale * np.eye(factor.size), 0.0, 1.0)
            elif factor.basis:
                root = eigenbasis(statistics)
            else:
                absolute = self.options.roots.damping == "absolute"
                root = self.solve(statistics, factor.order, epsilon=self.options.epsilon, absolute=absolute)
        self.seconds_computing += time.perf_counter() - begun
        return root

    def _wait(self) -> bool:
        """Waits for all roots; returns whether some were canceled."""
        pending = set(self._futures.values())
        while pending:
            done, pending = concurrent.futures.wait(
                pending, self.patience, concurrent.futures.FIRST_COMPLETED
            )
            if not done:
                # Its threads may hang forever; new ones replace them.
                if self._pool is not None:
                    self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None
                return True
        return False

    def _use_root(self, matrix: int, some_lost: bool, sent_at: int, state: Round) -> None:
        """Brings a root into use, or keeps the previous one if its task failed in any way; counts either."""
        (f, i), future = self._places[matrix], self._futures.get(matrix)
        factor, roots = self.factors[f], state.roots[f]
        try:
            if future is None or (some_lost and (future.cancelled() or not future.done())):
                raise TimeoutError("no worker delivered it")
            root = future.result()
            with np.errstate(over="ignore"):
                new = root.matrix.astype(roots.dtype)
            if not np.isfinite(new).all():
                raise RootError(f"it is beyond {roots.dtype}")
        except BaseException as error:
            self._count(state, matrix, "failed" if isinstance(error, RootError) else "lost")
            name = f"{factor.name}[{factor.numbers[i]}]"
            log.warning("root of %s from step %d: %s; the previous root is kept", name, sent_at, error)
            return
        roots[i] = new
        self._count(state, matrix, "refreshed")
        with np.errstate(over="ignore"):
            # Certified, not sent, and without drift: statistics changed last before they were sent.
            state.status[:, matrix] = 1, 0, 0, root.condition, root.residual, sent_at, *root.eigenvalues
