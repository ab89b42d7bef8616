"""Shampoo's options by one name each, so that tables of cases can be read and merged.

``tree`` makes the groups that ``ShampooOptions`` has of them, and ``names`` takes options apart again.
"""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from ctr.optim import ShampooOptions

PATHS = {
    "block_split": "blocking.split",
    "max_dimension": "blocking.max_dimension",
    "precondition_vectors": "blocking.vectors",
    "merge_dimensions": "blocking.merge",
    "merge_order": "blocking.merge_from",
    "merge_until": "blocking.merge_until",
    "dimensions_of_one": "blocking.ones",
    "beta1": "gradient.beta1",
    "beta3": "gradient.beta3",
    "l2": "gradient.l2",
    "statistics_frequency": "statistics.frequency",
    "initial_statistics": "statistics.initial",
    "damping": "roots.damping",
    "asynchronous": "roots.asynchronous",
    "drift_bound": "roots.drift_bound",
    "early_growth": "roots.early_growth",
    "first_exchange": "roots.first",
    "exchange_phase": "roots.phase",
    "update_clipping": "limits.rms",
    "update_limit_relative": "limits.relative",
    "update_limit_absolute": "limits.absolute",
    "sparse": "rows.rule",
    "graft_rows": "rows.graft_rows",
    "basis_change": "method.basis_change",
    "exponent_multiplier": "method.exponent_multiplier",
    "grafting": "grafting.kind",
    "grafting_beta2": "grafting.beta2",
    "normalized": "grafting.normalized",
    "blend_steps": "grafting.blend_steps",
}
METHODS = {
    "kl": {"kind": "kl"},
    "kl_undivided": {"kind": "kl", "divided": False},
    "diagonal": {"kind": "diagonal"},
    "eigenvalue_correction": {"kind": "eigenvalue_corrected"},
}


def tree(**given: Any) -> dict[str, Any]:
    """The arguments of ``ShampooOptions``, or of a Keras optimizer, in their groups."""
    found: dict[str, Any] = {}

    def put(path: str, value: Any) -> None:
        group, _, name = path.partition(".")
        if name:
            found.setdefault(group, {})[name] = value
        else:
            found[group] = value

    sides = {0.0: "right", 1.0: "left"}
    method = [given.pop("factor_update", "shampoo"), given.pop("large_dimensions", "none")]
    method.append("eigenvalue_correction" if given.pop("eigenvalue_correction", False) else "")
    for kind in method:
        for name, value in METHODS.get(kind, {}).items():
            put(f"method.{name}", value)
    if "skip" in method:
        put("blocking.skip_larger", True)
    share = given.pop("left_share", 0.5)
    if share in sides and "eigenvalue_correction" in method:
        put("method.sides", sides[share])
    elif share in sides:
        put("method.kind", "one_sided")
        put("method.side", sides[share])
    elif share != 0.5:
        put("method.left_share", share)
    if not given.pop("bias_correction", True):
        put("statistics.bias_correction", False)
        put("gradient.bias_correction", False)
    if given.get("exchange_phase") is not None:
        put("roots.identity", True)
    if not given.pop("grafted_norm", True):
        put("grafting.norm", "none")
    if given.pop("grafting_scope", "tensor") == "block":
        put("grafting.norm", "block")
    if given.pop("separate_momenta", False):
        put("grafting.momentum", "separate")
    if given.pop("weight_decay_kind", "decoupled") == "coupled":
        put("gradient.l2", given.pop("weight_decay", 0.0))
    kind = given.get("grafting", "adagrad")
    initial = given.pop("initial_accumulator", None)
    if initial is not None:
        put("grafting.initial_accumulator" if kind == "adagrad" else "rows.initial_accumulator", initial)
    added = {name: given.pop(name, None) for name in ("adagrad_epsilon", "grafting_epsilon")}
    own = added["adagrad_epsilon" if kind == "adagrad" else "grafting_epsilon"]
    if own is not None and kind in ("adagrad", "rmsprop", "adam", "lamb"):
        put("grafting.epsilon", own)
    if kind not in ("rmsprop", "adam", "lamb"):
        given.pop("grafting_beta2", None)
    solver = given.pop("solver", "auto")
    if solver != "auto":
        put("roots.solver", solver)
    for name, value in given.items():
        put(PATHS.get(name, name), value)
    return found


def options(**given: Any) -> ShampooOptions:
    return ShampooOptions(**tree(**given))


def names(made: ShampooOptions) -> SimpleNamespace:
    """All options, each under the one name that it has here."""
    plain = asdict(made)
    found = {name: value for name, value in plain.items() if not isinstance(value, dict)}
    for name, path in PATHS.items():
        group, _, key = path.partition(".")
        found[name] = plain[group].get(key)
    method, grafting = plain["method"], plain["grafting"]
    side = method.get("side", method.get("sides", "both"))
    found |= {
        "large_dimensions": "diagonal"
        if method["kind"] == "diagonal"
        else "skip"
        if plain["blocking"]["skip_larger"]
        else "none",
        "factor_update": "shampoo"
        if method["kind"] != "kl"
        else "kl"
        if method["divided"]
        else "kl_undivided",
        "eigenvalue_correction": method["kind"] == "eigenvalue_corrected",
        "basis_change": method.get("basis_change", "project"),
        "exponent_multiplier": method.get("exponent_multiplier", 1.0),
        "left_share": {"left": 1.0, "right": 0.0}.get(side, method.get("left_share", 0.5)),
        "bias_correction": plain["statistics"]["bias_correction"],
        "grafted_norm": grafting["norm"] != "none",
        "grafting_scope": "block" if grafting["norm"] == "block" else "tensor",
        "grafting_beta2": grafting.get("beta2", 0.999),
        "grafting_epsilon": grafting.get("epsilon", 1e-8),
        "adagrad_epsilon": grafting.get("epsilon", 0.0),
        "initial_accumulator": grafting.get(
            "initial_accumulator", plain["rows"]["initial_accumulator"] or 1e-6
        ),
        "separate_momenta": grafting["momentum"] == "separate",
        "solver": plain["roots"]["solver"]["kind"],
        "weight_decay": plain["weight_decay"] or plain["gradient"]["l2"],
        "weight_decay_kind": "coupled" if plain["gradient"]["l2"] else "decoupled",
        "has_identities": plain["roots"]["identity"],
        "is_kl": method["kind"] == "kl",
        "decay": plain["weight_decay"],
    }
    for name in (
        "exponent",
        "side_exponent",
        "correction_exponent",
        "averages_in_bases",
        "passes",
        "damps_zero",
    ):
        found[name] = getattr(made, name)
    return SimpleNamespace(**found)
