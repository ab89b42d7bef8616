"""Plug-ins: a loss, a network and a rule of columns. TensorFlow is imported only when they compute.

In a configuration::

    objective: {extra: {focal: {weight: 0.5, gamma: 1}}}
    model: {network: {gated_layer: {width: 32}}}

and in a mapping::

    derive: {site: {from: page, plugin: {host: {}}}}
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ctr.data.derived import ColumnRule
from ctr.objective.config import ExtraLoss
from ctr.training.model_config import NetworkPlugin


class Focal(ExtraLoss):
    """The focal loss (Lin et al., arXiv 1708.02002): (1 - p)^gamma times the logistic loss, p of the actual outcome.

    Attributes:
        gamma: 0: the logistic loss; the larger, the less rows count that are predicted well.
    """

    gamma: float = Field(default=2.0, ge=0)

    def loss(self, label: Any, logit: Any) -> Any:
        import tensorflow as tf

        against = logit * (1 - 2 * label)  # the logit of the outcome that did not occur
        # sigmoid(x) ** gamma has no derivative where the sigmoid rounds to 0.
        return tf.exp(-self.gamma * tf.nn.softplus(-against)) * tf.nn.softplus(against)


class GatedLayer(NetworkPlugin):
    """One layer whose outputs gates amplify: (e0 W + b) * (1 + alpha2 tanh(e0 G)).

    Attributes:
        width: the number of outputs.
    """

    width: int = Field(default=32, ge=1, le=4096)

    @property
    def units(self) -> int:
        return self.width

    def weights(self, width: int) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        from ctr.models.initial_weights import glorot_uniform, lecun_normal

        return {
            "values": ((width, self.width), lecun_normal),
            "bias": ((self.width,), 0.0),
            "gates": ((width, self.width), glorot_uniform),
        }

    def forward(self, weights: Mapping[str, Any], e0: Any, alpha2: Any) -> Any:
        import tensorflow as tf

        values = tf.matmul(e0, weights["values"]) + weights["bias"]
        return values * (1 + alpha2 * tf.tanh(tf.matmul(e0, weights["gates"])))


# In these forms RE2 and Python read them alike; \x00-\x7f alone are lower-cased.
_SCHEME, _REST = "^[A-Za-z][A-Za-z0-9+.-]*://", "(?s)[/?#].*"


class Host(ColumnRule):
    """The host of a URL, ``example.com`` of ``https://Example.com/page``."""

    probes = ("https://Example.com/page?q=http://x", "example.com", "HTTP://A.b#c", "//x", "ftp://ÄB.de/x\ny")

    def of_text(self, text: str) -> str:
        host = re.sub(_REST, "", re.sub(_SCHEME, "", text, count=1), count=1)
        return host.encode().lower().decode()

    def of_tensor(self, texts: Any) -> Any:
        import tensorflow as tf

        host = tf.strings.regex_replace(texts, _SCHEME, "", replace_global=False)
        return tf.strings.lower(tf.strings.regex_replace(host, _REST, "", replace_global=False))
