"""Configurations of other implementations of Shampoo, as options of this one that take the same steps.

    preset = torch_shampoo(lr=0.01, betas=(0.9, 0.99), epsilon=1e-8, grafting_config={"type": "AdamGraftingConfig"})
    model.compile(optimizer=Shampoo(**preset.arguments))

``torch_shampoo`` takes the keywords of ``DistributedShampoo`` of facebookresearch/optimizers, in the names of its
versions before and after 2025; ``jax_shampoo`` those of ``distributed_shampoo`` of google-research/precondition.
Their objects and enumerations may be given as mappings with the class name as ``type``, and as names of members.

Steps are equal in exact arithmetic, as long as no root fails: here none is used without its certificate, and none is
computed again with more damping. Where JAX's computes roots by its own iteration (``eigh`` False), some fail at
conditions from about 1000 on, and it damps these more. Without a graft, versions for PyTorch of 2024 take no step
before the first roots, newer ones and this one plain gradients.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ctr.optim.first_order.options import SGD, AdaGrad, Adam, AnyGraft, Momentum, RMSprop, Sign
from ctr.optim.shampoo.methods import EigenvalueCorrected, Method, Shampoo
from ctr.optim.shampoo.options import Blocking, GradientAverage, Roots, ShampooOptions, Statistics
from ctr.optim.shampoo.soap import LEARNING_RATE
from ctr.optim.shampoo.soap import soap as soap_options

_SYNCHRONOUS = Roots(
    damping="absolute", phase=0, asynchronous=False, early_growth=0.0, drift_bound=0.0, identity=True
)
"""Every root comes from the statistics of its own step, and is computed anew."""
_LARGEST = 65536
_NO_LIMIT = 2**31
_HIGHEST_ORDER = 4
"""Exponents by order have to be listed up to it, since weights may have so many dimensions (convolutions do)."""
_NO_EARLY_EXPONENT = (
    "there is no equal here of an inverse_exponent_override other than 1/2 of "
    "EigenvalueCorrectedShampooPreconditionerConfig without a grafting_config: before the first bases the steps have "
    "that exponent, too; allowed: start_preconditioning_step 1"
)
_TORCH_IGNORED = (
    "concurrency_config",
    "precision_config",
    "preconditioner_dtype",
    "pytorch_compile_backend",
    "shampoo_pt2_compile_config",
    "shampoo_runtime_config",
    "use_pin_memory",
    "use_protected_eigh",
    "use_pytorch_compile",
    "track_root_inv_residuals",
    "num_tolerated_failed_amortized_computations",
)
_JAX_IGNORED = (
    "batch_axis_name",
    "eigh",
    "end_preconditioning_compute_steps",
    "generate_fd_metrics",
    "generate_training_metrics",
    "inverse_failure_threshold",
    "lobpcg_max_iter",
    "mesh_axis_names",
    "num_devices_for_pjit",
    "precision",
    "reuse_preconditioner",
    "shard_optimizer_states",
    "statistics_partition_spec",
    "preconditioner_partition_spec",
    "tensordot_precision",
)
_JAX_NEUTRAL: dict[str, Any] = {
    "average_grad": False,
    "compression_rank": 0,
    "decay_preconditioning_compute_steps": False,
    "frequent_directions": False,
    "lobpcg_topk_precondition": 0,
    "precondtioner_type": "ALL",
    "reset_preconditioner": False,
}
"""What is accepted at its default, which switches it off. Arguments that have an effect with it alone are ignored."""

_PRECONDITIONER_NEUTRAL = {
    "drop_weighting_factor_on_gsquare": False,
    "ignored_basis_change_dims": {},
    "use_trace_scaling": False,
}
_PRECONDITIONER_IGNORED = (
    "concurrency_config",
    "num_tolerated_failed_amortized_computations",
    # Of trace scaling, which is off.
    "trace_scaling_exponent",
    "use_symmetric_packing",
)
_ROOTS_NEUTRAL = {"tolerance": 0.0, "exponent_multiplier": 1.0}
_ROOTS_IGNORED = (
    "eigendecomposition_offload_device",
    "enhance_stability",
    "make_positive_semidefinite",
    "retry_double_precision",
)


@dataclass(frozen=True)
class Preset:
    """A configuration of another implementation; where that does not normalize its momentum, the rate here is larger.

    ``tables_are_matrices``: embedding tables are treated as all other matrices, as there.
    """

    learning_rate: float
    options: ShampooOptions
    tables_are_matrices: bool = True

    @property
    def arguments(self) -> dict[str, Any]:
        tables = {"tables": None} if self.tables_are_matrices else {}
        return {"learning_rate": self.learning_rate, **tables, **vars(self.options)}


def torch_shampoo(
    *,
    lr: float = 1e-2,
    betas: tuple[float, float] = (0.9, 1.0),
    beta3: float = -1.0,
    epsilon: float = 1e-12,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    weight_decay_type: Any = None,
    max_preconditioner_dim: float = 1024,
    precondition_frequency: int = 1,
    start_preconditioning_step: int = -1,
    inv_root_override: int = 0,
    exponent_multiplier: float = 1.0,
    use_nesterov: bool = False,
    use_bias_correction: bool = True,
    use_decoupled_weight_decay: bool = True,
    grafting_config: Any = None,
    use_merge_dims: bool = True,
    preconditioner_config: Any = None,
    distributed_config: Any = None,
    iterate_averaging_config: Any = None,
    **ignored: Any,
) -> Preset:
    """Returns the equal of ``DistributedShampoo`` for PyTorch; arguments and defaults are its own.

    Args:
        distributed_config: the newest versions merge dimensions as its ``target_parameter_dimensionality`` says (1
            by default), from the right; without it they are merged as in the versions before, from the left.
        **ignored: arguments that change no step beyond rounding.

    Raises:
        ValueError: something has no equal here.
        TypeError: it has no such argument.
    """
    _refuse_arguments("DistributedShampoo", ignored, _TORCH_IGNORED)
    if iterate_averaging_config is not None:
        if momentum or dampening or use_nesterov:
            raise ValueError("iterate_averaging_config excludes momentum, dampening and use_nesterov")
        momentum, dampening, use_nesterov = _classic_momentum(iterate_averaging_config)
    merging = _merging(distributed_config, max_preconditioner_dim if use_merge_dims else None)
    is_merged_whole = math.isinf(max_preconditioner_dim) and "merge_until" in merging
    highest = merging["merge_until"] if is_merged_whole else _HIGHEST_ORDER
    method, override = _preconditioner(preconditioner_config, exponent_multiplier, highest)
    beta1, beta2 = betas
    own = None if beta3 in (-1.0, beta1) or not beta1 else beta3
    start = precondition_frequency if start_preconditioning_step == -1 else start_preconditioning_step
    block_size = _LARGEST if math.isinf(max_preconditioner_dim) else int(max_preconditioner_dim)
    if inv_root_override and override:
        raise ValueError("inv_root_override and inverse_exponent_override exclude each other")
    corrects = isinstance(method, EigenvalueCorrected)
    if corrects and override not in (None, 2) and grafting_config is None and start > 1:
        raise ValueError(_NO_EARLY_EXPONENT)
    decay, l2 = _weight_decay(weight_decay, weight_decay_type, use_decoupled_weight_decay, lr)
    options = ShampooOptions(
        method=method,
        exponent_override=inv_root_override or override,
        grafting=_torch_graft(grafting_config, beta2, epsilon, corrects, use_bias_correction),
        beta2=beta2,
        epsilon=epsilon,
        momentum=momentum,
        nesterov=use_nesterov and momentum > 0,
        weight_decay=decay,
        block_size=block_size,
        blocking=Blocking(split="full", max_dimension=_LARGEST, ones="keep", vectors=True, **merging),
        precondition_frequency=precondition_frequency,
        start_preconditioning_step=start,
        statistics=Statistics(frequency=1, bias_correction=use_bias_correction),
        roots=_SYNCHRONOUS,
        gradient=GradientAverage(beta1=beta1, beta3=own, bias_correction=use_bias_correction, l2=l2),
    )
    # M = mu M + (1 - d) P there is (1 - d) / (1 - mu) times the average here.
    scale = (1.0 - dampening) / (1.0 - momentum) if momentum else 1.0
    return Preset(lr * scale, options)


def jax_shampoo(
    *,
    learning_rate: float,
    block_size: int,
    beta1: float = 0.9,
    beta2: float = 0.999,
    diagonal_epsilon: float = 1e-10,
    matrix_epsilon: float = 1e-6,
    weight_decay: float = 0.0,
    start_preconditioning_step: int = 5,
    preconditioning_compute_steps: int = 1,
    statistics_compute_steps: int = 1,
    best_effort_shape_interpretation: bool = True,
    graft_type: Any = "SGD",
    nesterov: bool = True,
    exponent_override: int = 0,
    moving_average_for_momentum: bool = False,
    skip_preconditioning_dim_size_gt: int = 4096,
    skip_preconditioning_rank_lt: int = 1,
    decoupled_learning_rate: bool = True,
    decoupled_weight_decay: bool = False,
    relative_matrix_epsilon: bool = True,
    merge_small_dims_block_size: int = 4096,
    clip_by_scaled_gradient_norm: float | None = None,
    best_effort_memory_usage_reduction: bool = False,
    **ignored: Any,
) -> Preset:
    """Returns the equal of ``distributed_shampoo`` for JAX; arguments are its own; errors as of ``torch_shampoo``."""
    _refuse_arguments("distributed_shampoo", ignored, (*_JAX_IGNORED, *_JAX_NEUTRAL))
    for name, neutral in _JAX_NEUTRAL.items():
        given = ignored.get(name, neutral)
        if (_member(given) if isinstance(neutral, str) else given) != neutral:
            raise ValueError(f"there is no equal here of {name} {given!r}; allowed: {neutral!r}")
    refused = {
        "a learning_rate that is no number; allowed: a number": not isinstance(learning_rate, int | float),
        "clip_by_scaled_gradient_norm; allowed: None": bool(clip_by_scaled_gradient_norm),
        "decoupled_weight_decay; allowed: False": decoupled_weight_decay and weight_decay > 0,
        "decoupled_learning_rate False; allowed: True": not decoupled_learning_rate,
        "statistics_compute_steps above 1; allowed: 1": statistics_compute_steps != 1,
        "best_effort_memory_usage_reduction; allowed: False": best_effort_memory_usage_reduction,
        f"beta1 {beta1!r}; allowed: from 0 to below 1": not 0 <= beta1 < 1,
        "preconditioning_compute_steps below 1; allowed: from 1 up": preconditioning_compute_steps < 1,
        "skip_preconditioning_rank_lt above 2; allowed: 1, 2": skip_preconditioning_rank_lt not in (1, 2),
    }
    for what, wrong in refused.items():
        if wrong:
            raise ValueError(f"there is no equal here of {what}")
    options = ShampooOptions(
        grafting=_jax_graft(graft_type, beta2, diagonal_epsilon, "separate" if beta1 else "after"),
        momentum=beta1,
        nesterov=nesterov and beta1 > 0,
        beta2=beta2,
        epsilon=matrix_epsilon,
        weight_decay=weight_decay,
        block_size=block_size if block_size > 0 else _LARGEST,
        blocking=Blocking(
            split="full",
            max_dimension=min(skip_preconditioning_dim_size_gt, _LARGEST),
            skip_larger=True,
            merge=merge_small_dims_block_size if best_effort_shape_interpretation else None,
            ones="keep",
            vectors=skip_preconditioning_rank_lt == 1,
        ),
        precondition_frequency=preconditioning_compute_steps,
        # Steps are counted from 0 there.
        start_preconditioning_step=start_preconditioning_step + 1,
        statistics=Statistics(frequency=1, initial=matrix_epsilon, bias_correction=False),
        roots=replace(
            _SYNCHRONOUS,
            damping="relative" if relative_matrix_epsilon else "absolute",
            first=1,
            phase=1 % preconditioning_compute_steps,
        ),
        gradient=GradientAverage(bias_correction=False),
        exponent_override=exponent_override or None,
    )
    scale = 1.0 if moving_average_for_momentum else 1.0 / (1.0 - beta1)
    return Preset(learning_rate * scale, options)


def soap(*, learning_rate: float = LEARNING_RATE, **changed: Any) -> Preset:
    """Configures SOAP; ``changed`` are the arguments of ``ctr.optim.shampoo.soap.soap``. Tables learn by rows."""
    return Preset(learning_rate, soap_options(**changed), tables_are_matrices=False)


def _refuse_arguments(what: str, given: Mapping[str, Any], ignored: Sequence[str]) -> None:
    for name in given:
        if name not in ignored:
            raise TypeError(
                f"{what} has no argument {name!r} that is known here; ignored are {', '.join(ignored)}"
            )


def _check_name(argument: str, name: str, allowed: Iterable[str]) -> None:
    if name not in allowed:
        raise ValueError(f"{argument} is {name}; allowed: {', '.join(allowed)}")


def _classic_momentum(config: Any) -> tuple[float, float, bool]:
    name, fields = _named(config)
    _check_name("iterate_averaging_config", name, ["ClassicMomentumConfig"])
    found = fields.pop("momentum", 0.5), fields.pop("dampening", 0.0), fields.pop("use_nesterov", False)
    _refuse_rest(name, fields, {})
    return found


def _named(config: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(config, Mapping):
        fields = dict(config)
        return str(fields.pop("type", "")), fields
    return type(config).__name__, dict(vars(config))


def _member(value: Any) -> str:
    return str(getattr(value, "name", value)).upper()


def _torch_graft(
    config: Any, beta2: float, epsilon: float, corrected: bool, bias_correction: bool
) -> AnyGraft:
    if config is None:
        # Before its first roots the other one has identities: plain gradients, or second moments as they are.
        if not corrected:
            return SGD(norm="none")
        if beta2 < 1.0:
            return (Adam if bias_correction else RMSprop)(norm="none", beta2=beta2, epsilon=epsilon)
        return AdaGrad(norm="none", initial_accumulator=0.0, epsilon=epsilon)
    name, fields = _named(config)
    kind = name.removesuffix("GraftingConfig").removesuffix("PreconditionerConfig").lower()
    if kind not in ("sgd", "adagrad", "rmsprop", "adam"):
        raise ValueError(f"grafting_config is {name}; allowed: those of SGD, AdaGrad, RMSprop, Adam, None")
    has_moments, is_old = kind in ("rmsprop", "adam"), name.endswith("GraftingConfig")
    decay = fields.pop("beta2", 0.99 if kind == "rmsprop" else 0.999) if has_moments else 1.0
    if kind != "sgd":
        epsilon = fields.pop("epsilon", 1e-8 if has_moments and is_old else 1e-10)
    _refuse_rest(name, fields, {"drop_weighting_factor_on_gsquare": False} if has_moments else {})
    if kind == "sgd":
        return SGD(norm="block")
    if decay == 1.0:
        # They add up there, without a correction.
        return AdaGrad(norm="block", initial_accumulator=0.0, epsilon=epsilon)
    return (Adam if kind == "adam" else RMSprop)(norm="block", beta2=decay, epsilon=epsilon)


def _refuse_rest(
    name: str, fields: Mapping[str, Any], neutral: Mapping[str, Any], ignored: Sequence[str] = ()
) -> None:
    """Raises ValueError for fields without an equal here.

    Those of ``neutral`` have one at a value alone; those ``ignored``, and with them dtypes, change no step in exact
    arithmetic.
    """
    for field, value in neutral.items():
        if (fields.get(field) or value) != value:
            raise ValueError(f"there is no equal here of {field} of {name}; allowed: {value!r}")
    rest = [str(field) for field in fields if field not in neutral and field not in ignored]
    if ignored:
        rest = [field for field in rest if not field.endswith("dtype")]
    if rest:
        raise ValueError(f"there is no equal here of {', '.join(sorted(rest))} of {name}")


def _check_roots(config: Any) -> None:
    if config is None:
        return
    name, fields = _named(config)
    exact = ("EigenConfig", "EighEigendecompositionConfig", "CoupledNewtonConfig")
    _check_name("amortized_computation_config", name, exact)
    stability = fields.pop("rank_deficient_stability_config", None)
    if stability is not None:
        _check_name("rank_deficient_stability_config", _named(stability)[0], ["PerturbationConfig"])
    # Of coupled Newton, these say how exact roots are.
    exactness = ("tolerance", "max_iterations") if name == "CoupledNewtonConfig" else ()
    neutral = {field: value for field, value in _ROOTS_NEUTRAL.items() if field not in exactness}
    _refuse_rest(name, fields, neutral, (*exactness, *_ROOTS_IGNORED))


def _preconditioner(config: Any, multiplier: float, highest: int) -> tuple[Method, int | None]:
    """The method, and p of its exponents 1/p, or None."""
    name, fields = _named({"type": "ShampooPreconditionerConfig"} if config is None else config)
    shampoo = Shampoo(exponent_multiplier=multiplier)
    methods: dict[str, Method] = {
        "ShampooPreconditionerConfig": shampoo,
        "RootInvShampooPreconditionerConfig": shampoo,
        "EigendecomposedShampooPreconditionerConfig": shampoo,
        "EigenvalueCorrectedShampooPreconditionerConfig": EigenvalueCorrected(basis_change="keep"),
    }
    _check_name("preconditioner_config", name, sorted(methods))
    corrects = isinstance(methods[name], EigenvalueCorrected)
    if corrects and multiplier != 1.0:
        raise ValueError("there is no equal here of exponent_multiplier with eigenvalue correction")
    override = _exponents(fields.pop("inverse_exponent_override", None) or {}, corrects, highest)
    _check_roots(fields.pop("amortized_computation_config", None))
    _refuse_rest(name, fields, _PRECONDITIONER_NEUTRAL, _PRECONDITIONER_IGNORED)
    return methods[name], override


def _exponents(overrides: Mapping[int, Any], corrects: bool, highest: int) -> int | None:
    """One exponent for tensors of all orders up to ``highest``: here they have one number for all."""

    def default(order: int) -> float:
        return 0.5 if corrects else 1 / (2 * max(order, 1))

    exponents = {}
    for order, value in overrides.items():
        along = [value]
        if isinstance(value, Mapping):
            along = [value.get(axis, default(order)) for axis in range(order)]
        is_one = all(isinstance(one, int | float) and one == along[0] for one in along)
        exponents[order] = (along[0] if along else default(order)) if is_one else math.nan
    if all(math.isclose(value, default(order)) for order, value in exponents.items()):
        return None
    # Orders that are not listed have their own.
    listed = [exponents.get(order, default(order)) for order in range(1, max(exponents) + 1)]
    p = round(1 / listed[0]) if listed and listed[0] > 0 else 0
    if not p or not all(math.isclose(value, 1 / p) for value in listed):
        allowed = (
            "one exponent 1/p, the same for all orders up to that of the weight with the most dimensions"
        )
    elif max(exponents) < highest:
        allowed = f"all orders up to {highest}, since those that are not listed have another exponent"
    else:
        return p
    raise ValueError(f"inverse_exponent_override is {dict(overrides)!r}; allowed: {allowed}")


def _merging(config: Any, limit: float | None) -> dict[str, Any]:
    """How dimensions are merged up to ``limit``: by the newest versions from the right, until few enough are left."""
    fields = {} if config is None else _named(config)[1]
    target = fields.get("target_parameter_dimensionality")
    if limit is None or target == math.inf:
        return {"merge": None}
    merged = {"merge": _NO_LIMIT if math.isinf(limit) else int(limit)}
    return merged if target is None else merged | {"merge_from": "right", "merge_until": target}


def _weight_decay(decay: float, kind: Any, decoupled: bool, lr: float) -> tuple[float, float]:
    """Decoupled weight decay, and L2 regularization."""
    name = ("DECOUPLED" if decoupled else "L2") if kind is None else _member(kind)
    # CORRECTED scales by the rate over its peak, which is 1 where the rate is a number.
    _check_name("weight_decay_type", name, ("DECOUPLED", "CORRECTED", "INDEPENDENT", "L2"))
    if decay and name == "INDEPENDENT":
        # weight_decay / peak_lr times the weights, and the peak is the rate at the start.
        if not lr > 0:
            raise ValueError(f"lr is {lr!r}; allowed with weight_decay_type INDEPENDENT: above 0")
        decay /= lr
    return (0.0, decay) if name == "L2" else (decay, 0.0)


def _jax_graft(kind: Any, beta2: float, epsilon: float, momentum: Momentum) -> AnyGraft:
    adagrad = AdaGrad(initial_accumulator=0.0, epsilon=epsilon)
    kinds: dict[str, AnyGraft] = {
        "NONE": SGD(norm="none"),
        "SGD": SGD(),
        "SQRT_N": Sign(),
        "ADAGRAD": adagrad,
        "RMSPROP": adagrad if beta2 == 1.0 else RMSprop(beta2=beta2, epsilon=epsilon),
    }
    _check_name("graft_type", _member(kind), kinds)
    return replace(kinds[_member(kind)], momentum=momentum)


FF = ShampooOptions(
    momentum=0.9,
    nesterov=True,
    statistics=Statistics(frequency=1),
    roots=Roots(early_growth=0.0, drift_bound=0.0),
    start_preconditioning_step=50,
)
"""FF 4.2: AdaGrad's step size for each layer, Nesterov momentum of the preconditioned gradient, blocks, and roots
L^(-1/4) in float64 on the host, every 50 steps and while the device goes on. FF gives no number of steps and no
damping; that is relative here."""

PSO = ShampooOptions(
    momentum=0.9,
    epsilon=0.0,
    grafting=AdaGrad(initial_accumulator=0.0, momentum="before"),
    statistics=Statistics(frequency=1, initial=1e-6),
    roots=Roots(damping="absolute", early_growth=0.0, drift_bound=0.0, first=50, phase=0, identity=True),
    start_preconditioning_step=51,
)
"""PSO algorithm II with tau2 = 1 and tau1 = 50 (in PSO's runs 400 to 1000): statistics from 1e-6 I, of whose size PSO
says nothing, and the norm of AdaGrad's momentum."""

PT = torch_shampoo(grafting_config={"type": "AdaGradGraftingConfig"}, precondition_frequency=50).options
"""PT algorithm 2 with AdaGrad's step sizes: everything in the step that it is due at, and its averages corrected. Steps
are counted from 1, as in the code of PT; the algorithm as printed counts from 0."""

PRESETS = {"ff": FF, "pso": PSO, "pt": PT}
