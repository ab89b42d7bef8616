"""The steps of ``reference_loop.py``: what each kind of weights learns from a batch, as formulas in float64.

``batch`` has the label, the weight and the query of each row; ``drift`` is its weight over that of all rows up to it.
"""

import numpy as np

SHARED = 0.1
"""The variance of what the rows of a query have in common."""


def sigmoid(logit):
    return 1 / (1 + np.exp(-logit))


def bend(logit):
    """p (1 - p)"""
    return np.maximum(sigmoid(logit) * (1 - sigmoid(logit)), 1e-6)


def query_effect(batch, logit):
    """Of each row what its query adds to its logit, and the share of curvature that is left to what queries share."""

    def total(values):
        return np.bincount(batch.query, batch.weight * values)[batch.query]

    p, y, n = sigmoid(logit), batch.label, np.maximum(total(1.0), 1e-300)
    middle = total(p + y) / (2 * n)
    left = 1 / (1 + SHARED * np.maximum(total(p * (1 - p)), n * middle * (1 - middle)))
    return -SHARED * total(p - y) * left, left


class Bias:
    """Three Newton's methods for one bias that drifts by v (Kalman), averaged by exp(-loss) (Vovk, 1990)."""

    v = np.array([0.0, 0.3, 3.0])

    def __init__(self, value):
        self.value = float(value)
        self.distance, self.known, self.loss = np.zeros((3, 3))

    def step(self, batch, logit, drift):
        """Returns how far the bias has gone."""
        h = batch.weight * bend(logit)
        of_query = 1 / (1 + SHARED * np.bincount(batch.query, h)[batch.query])
        G, H = (of_query * batch.weight * (sigmoid(logit) - batch.label)).sum(), (of_query * h).sum()
        kept = 1 - 0.5 * drift
        self.loss = kept * self.loss + G * self.distance + H * self.distance**2 / 2
        self.loss -= self.loss.min()
        self.known = kept * self.known / (1 + self.v * drift * kept * self.known) + H
        moved = self.distance + np.clip(-(G + H * self.distance) / (self.known + 0.3), -1, 1)
        move = np.exp(-self.loss) @ moved / np.exp(-self.loss).sum()
        self.value, self.distance = self.value + move, moved - move
        return move


class Combiner:
    """logit = z_1 + offset + sum of gate_k (z_k - z_1): A = (1 - drift) A + sum h x x', w -= (A + P)^-1 sum g x.

    A single expert is the prediction.
    """

    def __init__(self, experts):
        self.values, self.known = np.zeros(experts), np.zeros((experts, experts))
        self.prior = np.diag([100.0] + [10.0] * (experts - 1))
        self.low, self.high = [-20.0] + [0.0] * (experts - 1), [20.0] + [1.0] * (experts - 1)

    def inputs(self, logits):
        return np.stack([np.ones_like(logits[0]), *(other - logits[0] for other in logits[1:])])

    def predict(self, logits):
        return logits[0] + self.values @ self.inputs(logits)

    def step(self, batch, drift):
        if len(batch.logits) == 1:
            return
        x = self.inputs(batch.logits)
        g, h = batch.weight * (sigmoid(batch.logit) - batch.label), batch.weight * bend(batch.logit)
        self.known = (1 - drift) * self.known + h * x @ x.T
        move = np.clip(np.linalg.solve(self.known + self.prior, x @ g), -1, 1)
        self.values = np.clip(self.values - move, self.low, self.high)


class LinearWeights:
    """Newton's steps of a feature's weights, of prior precision T and forgetting k (``ctr.optim.rows.newton``).

    S is what is known of each weight, ``prior`` the T by which it was shrunk; V_k = dV / dlog k, w_k = dw / dlog k.
    """

    def __init__(self, ids, features):
        self.value, self.S, self.V_k, self.w_k = np.zeros((4, ids))
        self.prior = np.full(ids, float(features))
        self.log_T, self.known_of_T, self.log_k, self.known_of_k = np.log(features), 1.0, np.log(0.005), 0.3

    def step(self, G, H):
        at = H > 0
        G, H, w, S, V_k, w_k = (of_ids[at] for of_ids in (G, H, self.value, self.S, self.V_k, self.w_k))
        T, k = np.exp(self.log_T), np.exp(self.log_k)
        w_T = -w * T / (T + S)
        shrunk = w * (self.prior[at] + S) / (T + S)
        D = k / T * H / (S + H)
        drifted = 1 / (1 / (T + S) + D)
        before = np.maximum(T, drifted)
        after = before + H + 0.1 * G**2 / (1 + H / before)
        # D is one of V, as S is.
        D_k = D + D * V_k * (T + S) ** 2 / (S + H)
        V_k = np.where(drifted > T, (before / after) ** 2 * (V_k + D_k), 0.0)
        self.value[at] = (before * shrunk + (after - before) * w - G) / after
        self.S[at], self.prior[at], self.V_k[at] = after - T, T, V_k
        self.w_k[at] = w_k * (1 - H / after) - G * V_k
        # T and k, too, learn by Newton's steps, on the loss from before this step.
        self.known_of_T, self.known_of_k = self.known_of_T + H @ w_T**2, self.known_of_k + H @ w_k**2
        self.log_T = np.clip(self.log_T - np.clip(G @ w_T / self.known_of_T, -0.5, 0.5), -3, 12)
        self.log_k = np.clip(self.log_k - np.clip(G @ w_k / self.known_of_k, -0.5, 0.5), -9, 0)


class AdaGrad:
    """a += g^2, w -= rate g / sqrt(a)"""

    def __init__(self, value, rate, accumulator):
        self.value, self.rate = value.astype(float), rate
        self.squares = np.full(value.shape, float(accumulator))

    def direction(self, g):
        self.squares += g**2
        return np.divide(g, np.sqrt(self.squares), out=np.zeros_like(g), where=self.squares > 0)

    def step(self, g):
        self.value -= self.rate * self.direction(g)


class Shampoo(AdaGrad):
    """Along L^(-1/4) G R^(-1/4) as far as AdaGrad goes; with momentum (FF 4.2; PSO alg. II and App. G).

    Before batches are large it is AdaGrad.
    """

    def __init__(self, value, rate, options):
        super().__init__(value, rate, options.grafting.initial_accumulator)
        self.options, self.steps, self.L, self.R, self.M = options, 0, 0.0, 0.0, 0.0
        self.roots = self.sent = None

    def step(self, g, is_large):
        if not is_large:
            return super().step(g)
        P, mu = self.direction(g), self.options.momentum
        self.steps += 1
        if g.ndim == 2 and min(g.shape) > 1:
            self.L, self.R = self.L + g @ g.T, self.R + g.T @ g
            self.exchange()
            if self.roots is not None:
                shampoo = self.roots[0] @ g @ self.roots[1]
                P = shampoo * np.linalg.norm(P) / (np.linalg.norm(shampoo) or 1.0)
        self.M = mu * self.M + (1 - mu) * P
        self.value -= self.rate * (mu * self.M + (1 - mu) * P if self.options.nesterov else self.M)

    def exchange(self):
        """Those that were sent come into use, at first those of now, and those of now are sent."""
        after = self.steps - self.options.start_preconditioning_step
        if after >= 0 and after % self.options.precondition_frequency == 0:
            roots = [inverse_fourth_root(A, self.options.epsilon) for A in (self.L, self.R)]
            is_late = self.options.roots.asynchronous and self.sent is not None
            self.roots, self.sent = self.sent if is_late else roots, roots


def inverse_fourth_root(A, epsilon):
    """(A + epsilon lambda_max I)^(-1/4)"""
    values, vectors = np.linalg.eigh(A)
    return vectors * (np.maximum(values, 0) + epsilon * values[-1]) ** -0.25 @ vectors.T
