"""DCNv2 with low-rank crosses under a ramp, and the logistic regression that it contains.

    e_i = alpha2 * (e_0 * (U_i V_i e_{i-1} + b_i)) + e_{i-1}          (FF 4.3; b_i as in DCNv2)
    logit = w . deep(e_L) + b + sum of linear weights

``alpha2`` ramps from 0 to 1, so that training starts as if there were no crosses (ReZero).
"""

import math
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_recommenders as tfrs


class LowRankCross(tfrs.layers.dcn.Cross):
    """tensorflow-recommenders' cross, whose inner layers compute in this layer's dtype.

    The base class gives them its variable dtype, so under ``mixed_bfloat16`` they would compute in
    float32.
    """

    def build(self, input_shape: tf.TensorShape) -> None:
        super().build(input_shape)
        inner = [self._dense] if self._projection_dim is None else [self._dense_u, self._dense_v]
        for layer in inner:
            layer._set_dtype_policy(self.dtype_policy)


class DCN(tf.keras.Model):
    """The dense part of the click model: crosses, deep layers, and the logit.

    Args:
        cross_layers: number of crosses; 0 for none.
        cross_rank: k, the rank of U_i V_i; 0 for full matrices.
        deep_units: widths of the deep layers; with neither crosses nor deep layers the logit is the
            bias plus the linear weights: a logistic regression.
        activation: a Keras activation's name.
        prior: expected click probability, at which the output bias starts.
        compute_dtype: ``float32`` or ``bfloat16``; weights are float32 in both.
        rank_head: a second output, for a ranking loss (FF 4.1.1, multi-task). Needs a hidden layer or crosses.
    """

    def __init__(
        self,
        cross_layers: int,
        cross_rank: int,
        deep_units: Sequence[int],
        activation: str,
        prior: float,
        compute_dtype: str,
        rank_head: bool = False,
    ) -> None:
        super().__init__(name="dcn")
        policy = "mixed_bfloat16" if compute_dtype == "bfloat16" else "float32"
        self.crosses = [
            LowRankCross(projection_dim=cross_rank or None, dtype=policy, name=f"cross_{index}")
            for index in range(cross_layers)
        ]
        self.deep = [
            tf.keras.layers.Dense(units, activation=activation, kernel_initializer="he_normal", dtype=policy)
            for units in deep_units
        ]
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=[],
            dtype="float32",
            initializer=tf.keras.initializers.Constant(math.log(prior / (1.0 - prior))),
        )
        has_network = bool(self.crosses or self.deep)
        self.head = (
            tf.keras.layers.Dense(1, use_bias=False, dtype="float32", name="head") if has_network else None
        )
        if rank_head and not has_network:
            raise ValueError("a rank head needs crosses or deep layers to share with the click's head")
        self.rank_head = (
            tf.keras.layers.Dense(1, use_bias=False, dtype="float32", name="rank_head") if rank_head else None
        )

    def call(self, e0: tf.Tensor, linear: tf.Tensor, alpha2: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Logits of the click, the model's prediction, and scores to rank by, which only training uses.

        Args:
            e0: float32 [B, m], the concatenated embeddings; unused by a logistic regression.
            linear: float32 [B], the summed linear weights.
            alpha2: float32 scalar in [0, 1].

        Returns:
            Two float32 [B]; without a rank head the second one is the first.
        """
        logit = linear + self.output_bias
        if self.head is None:
            return logit, logit
        hidden = e0
        if self.crosses:
            hidden = tf.cast(e0, self.crosses[0].compute_dtype)
            base = tf.cast(alpha2, hidden.dtype) * hidden
            for cross in self.crosses:
                hidden = cross(base, hidden)
        for layer in self.deep:
            hidden = layer(hidden)
        hidden = tf.cast(hidden, tf.float32)
        logit += tf.squeeze(self.head(hidden), axis=1)
        if self.rank_head is None:
            return logit, logit
        return logit, tf.squeeze(self.rank_head(hidden), axis=1)
