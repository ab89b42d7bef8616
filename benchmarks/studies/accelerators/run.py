"""Runs the training step of `ctr` on the devices that jax finds, a GPU, a TPU or a CPU: jax and NumPy are enough.

    python run.py [--seconds 20] [--profile FOLDER] [--skip-torch]

First it checks steps of each kind against the steps that TensorFlow made on a CPU with the same batches; the logits of
the first ten must agree, and the distances of all logits, and of the weights after the last step, are shown. The host
computes Shampoo's roots between two steps, from statistics that the step collected, as in the trainer. Then, for each
batch size, it measures examples per second and memory. If PyTorch can be imported, the same model in PyTorch, eager and
compiled, is measured last.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import time
from pathlib import Path

# Float32 products must round as float32, here as in PyTorch: an NVIDIA GPU would use 10 bits of the factors.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false")

import jax
import jax.export
import numpy as np

jax.config.update("jax_enable_x64", True)  # The steps are counted in int64.

HERE = Path(__file__).resolve().parent
# Allowed difference of the logits of the first ten steps. AdaGrad's first step has the gradient's sign whatever its
# size, so that different rounding of gradients near 0 shows at once, above all in bfloat16.
FIRST = {"float32": 0.05, "bfloat16": 0.25}
# The drift of later steps is only shown: a few batches are learned repeatedly, and rounding differences grow from step
# to step, also on the same machine.
SETTLED = 10_000
"""Number of steps after which root exchanges have their final distance."""


def examples(size, count):
    """Draws ids, int32 [B, F], by Zipf's law and labels, float32 [B], of batches; equal on every machine."""
    random = np.random.default_rng(0)
    shape = (size["batch"], size["features"])
    ids = [((random.zipf(1.2, shape) - 1) % size["buckets"]).astype(np.int32) for _ in range(count)]
    clicks = [random.random(len(batch_ids)) < 0.1 + 0.2 * (batch_ids[:, 0] % 2) for batch_ids in ids]
    return list(zip(ids, (labels.astype(np.float32) for labels in clicks), strict=True))


def arguments(program, ids, label):
    """Returns the arguments of a step as arrays, with the batch's distinct table rows and each id's index in them."""
    specs = {name: (shape, dtype) for name, shape, dtype in program["arguments"]}
    keys = ids + np.arange(ids.shape[1], dtype=np.int32) * program["size"]["buckets"]
    distinct, positions = np.unique(keys, return_inverse=True)
    free = np.ones(ids.shape[1] * program["size"]["buckets"], bool)
    free[distinct] = False
    padding = np.flatnonzero(free)[: specs["plans/0/distinct"][0][0] - len(distinct)]
    ones = np.ones(len(label), np.float32)
    values = {
        **{"targets/label": label, "targets/weight": ones, "targets/own_weight": ones},
        "targets/query": np.arange(len(label)) // program["slate"],
        "plans/0/distinct": np.concatenate([distinct, padding]),
        "plans/0/single": positions.reshape(ids.shape),
        **program["scalars"],
    }
    return [np.asarray(values[name], dtype).reshape(shape) for name, (shape, dtype) in specs.items()]


def first_value(entry, stored):
    """Returns the initial value of a variable: stored, constant, or drawn."""
    name, shape, dtype, begin = entry
    if begin == "stored":
        return stored[name]
    if "scale" not in begin:
        return np.full(shape, begin["value"], dtype)
    drawn = np.random.default_rng(begin["seed"]).standard_normal(shape, np.float32)
    return drawn * np.array(begin["scale"], np.float32)


def unpack(packed, size):
    """Unpacks symmetric matrices from triangles packed by ctr.optim.shampoo.triangles."""
    rows = size - size // 2
    half = size - rows
    rectangle = packed[:, half * rows :].reshape(-1, rows, half + 1)
    low, high = np.tril(rectangle[:, :, :rows]), np.triu(rectangle[:, :half, 1:])
    lower = np.zeros([len(packed), size, size], packed.dtype)
    lower[:, :rows, :rows] = low
    lower[:, rows:, :rows] = packed[:, : half * rows].reshape(-1, half, rows)
    lower[:, rows:, rows:] = np.swapaxes(high, 1, 2)
    return lower + np.swapaxes(np.tril(lower, -1), 1, 2)


class Roots:
    """Float64 statistics and their roots on the host, exchanged with the device between two steps."""

    def __init__(self, shampoo):
        self.options, self.factors = shampoo["options"], shampoo["factors"]
        self.totals = [np.zeros((f["count"], f["size"], f["size"])) for f in self.factors]
        matrices = sum(f["count"] for f in self.factors)
        self.drift, self.certified = np.zeros(matrices), np.zeros(matrices, bool)
        self.sent, self.last, self.moved = {}, -1, 0

    def gap(self, step):
        growth, frequency = self.options["early_growth"], self.options["precondition_frequency"]
        return min(max(int(growth * step), 1), frequency) if growth else frequency

    def exchange(self, step, state):
        """If due after a step: brings pending roots into use, fetches statistics, and computes their roots."""
        start, frequency = self.options["start_preconditioning_step"], self.options["precondition_frequency"]
        if step < (start if self.last < 0 else self.last + self.gap(self.last)):
            return
        self.use(state)
        offset = 0
        for total, factor in zip(self.totals, self.factors, strict=True):
            packed = np.asarray(state[factor["name"] + "/window"])
            self.moved += packed.nbytes
            window = unpack(packed, factor["size"])
            total += window
            self.drift[offset : offset + len(total)] += np.linalg.norm(window.astype(np.float64), axis=(1, 2))
            state[factor["name"] + "/window"] = jax.device_put(np.zeros_like(packed))
            for i, matrix in enumerate(total):
                norm, number = np.linalg.norm(matrix), offset + i
                steady = self.certified[number] and self.drift[number] <= self.options["drift_bound"] * norm
                if norm > 0 and not steady:
                    self.sent[factor["name"], i, number] = self.root(matrix, factor["exponent"])
            offset += len(total)
        state["shampoo/window_collections"] = jax.device_put(np.int64(0))
        # Early statistics change fast: their roots are used at once.
        if self.last < 0 or self.gap(step) < frequency:
            self.use(state)
        self.last = step

    def root(self, matrix, exponent):
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        values = values + self.options["epsilon"] * values[-1] + max(-values[0], 0.0)
        half = vectors * values ** (-exponent / 2)
        return half @ half.T

    def use(self, state):
        for name in dict.fromkeys(name for name, *_ in self.sent):
            roots = np.array(state[name + "/root"])
            for (factor, i, number), root in self.sent.items():
                if factor == name:
                    roots[i], self.certified[number], self.drift[number] = root, True, 0.0
            self.moved += roots.nbytes
            state[name + "/root"] = jax.device_put(roots)
        if self.sent:
            status = np.array(state["shampoo/status"])
            status[0] = self.certified
            state["shampoo/status"] = jax.device_put(status)
        self.sent = {}


def function_of(artifact, specs, results):
    """Returns a function that jax can call for a StableHLO artifact with parameters ``specs`` and ``results``."""
    # Exports a function of the same parameters and results, and replaces its program by the step's.
    same = jax.jit(lambda *_: [jax.numpy.zeros(*spec) for spec in results], keep_unused=True)
    anywhere = [jax.export.DisabledSafetyCheck.platform()]
    exported = jax.export.export(same, disabled_checks=anywhere)(*specs)
    return dataclasses.replace(exported, mlir_module_serialized=artifact).call


class Model:
    """A training step with its state on the device."""

    def __init__(self, name):
        self.program = json.loads((HERE / f"{name}.json").read_text())
        parameters, state = self.program["arguments"], self.program["state"]
        specs = [jax.ShapeDtypeStruct(shape, dtype) for _, shape, dtype, *_ in (*parameters, *state)]
        artifact = (HERE / f"{name}.stablehlo").read_bytes()
        exported = function_of(artifact, specs, self.program["result_specs"])
        # The state is updated where it is.
        changed = {name for name in self.program["changed"]}
        places = [number for number, (name, *_) in enumerate(state, len(parameters)) if name in changed]
        self.step = jax.jit(exported, donate_argnums=tuple(places))
        stored = np.load(HERE / "weights.npz")
        values = {entry[0]: first_value(entry, stored) for entry in self.program["state"]}
        drawn = [values[entry[0]] for entry in self.program["state"] if "scale" in entry[3]]
        digest = hashlib.sha256(b"".join(array.tobytes() for array in drawn)).hexdigest()
        if digest != self.program["drawn"]:
            print("this NumPy draws other numbers than the one that made the folder: nothing can be compared")
        self.state = {name: jax.device_put(value) for name, value in values.items()}
        self.roots = Roots(self.program["shampoo"]) if self.program["shampoo"] else None
        self.steps = 0

    def learn(self, values):
        """Makes a training step; returns the logits from before it."""
        results = self.step(*values, *self.state.values())
        self.state |= zip(self.program["changed"], results[self.program["results"] :], strict=True)
        self.steps += 1
        if self.roots is not None:
            self.roots.exchange(self.steps, self.state)
        return results[0]


def check(name):
    """Returns whether steps on this machine agree with the expected results in the folder; prints the differences."""
    model, expected = Model(name), np.load(HERE / f"{name}.expected.npz")
    program = model.program
    feeds = [arguments(program, *example) for example in examples(program["size"], program["feeds"])]
    steps = len(expected["logits"])
    logits = np.stack([np.asarray(model.learn(feeds[step % len(feeds)])) for step in range(steps)])
    difference = logits - expected["logits"]
    begin, first = (float(np.abs(difference[:count]).max()) for count in (1, 10))
    spread = float(np.sqrt(np.mean(difference**2)) / logits.std())
    weights = {key: np.asarray(model.state[key]) for key in expected.files if key != "logits"}
    apart = max(
        np.linalg.norm(value - expected[key]) / max(np.linalg.norm(expected[key]), 1e-12)
        for key, value in weights.items()
    )
    good = first <= FIRST[program["dtype"]] and bool(np.isfinite(logits).all())
    moved = (
        "" if model.roots is None else f", {model.roots.moved / 1e6:.1f} MB of statistics and roots exchanged"
    )
    print(
        f"{name}: logits of the first step differ by at most {begin:.2g}, of 10 steps by {first:.2g}, of {steps} steps "
        f"by {spread:.2g} of their spread, weights by {apart:.2g} of their norm{moved}: "
        f"{'as expected' if good else 'TOO MUCH'}",
        flush=True,
    )
    return good


def rate(name, seconds, profile):
    """Measures and returns the examples per second of a program, with its feeds on the device."""
    model = Model(name)
    program = model.program
    if model.roots is not None:
        model.steps = model.roots.last = SETTLED
        model.state["shampoo/step"] = jax.device_put(np.int64(SETTLED))
    feeds = [jax.device_put(arguments(program, *example)) for example in examples(program["size"], 2)]
    jax.block_until_ready([model.learn(feeds[step % 2]) for step in range(4)])
    times, begun = [], time.perf_counter()
    while not times or time.perf_counter() - begun < seconds:
        last = time.perf_counter()
        jax.block_until_ready([model.learn(feeds[step % 2]) for step in range(10)])
        times.append((time.perf_counter() - last) / 10)
    if profile:
        with jax.profiler.trace(str(Path(profile) / name)):
            jax.block_until_ready([model.learn(feeds[step % 2]) for step in range(5)])
    memory = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    memory_text = "" if memory is None else f", at most {memory / 1e9:.2f} GB of memory so far"
    step = float(np.median(times))
    print(
        f"{name}: {program['size']['batch'] / step:,.0f} examples/s, {1000 * step:.2f} ms a step{memory_text}",
        flush=True,
    )
    return program["size"]["batch"] / step


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=20, help="of measuring each batch size; 0: only the check"
    )
    parser.add_argument("--profile", help="a folder for profiles that TensorBoard shows")
    parser.add_argument("--skip-torch", action="store_true")
    options = parser.parse_args()
    contents = json.loads((HERE / "contents.json").read_text())
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, NumPy {np.__version__}", flush=True)
    good = all([check(name) for name in contents["checked"]])
    if options.seconds:
        rates = {name: rate(name, options.seconds, options.profile) for name in contents["measured"]}
        if not options.skip_torch:
            beside_torch(rates, options.seconds)
    sys.exit(not good)


def beside_torch(rates, seconds):
    """Measures the same models in PyTorch, if it is installed."""
    try:
        import torch_model
    except ImportError as error:
        print(f"PyTorch is left out: {error}")
        return
    for name, speed in rates.items():
        program = json.loads((HERE / f"{name}.json").read_text())
        if program["shampoo"] is None:
            torch_model.compare(program, examples(program["size"], 2), speed, seconds)


if __name__ == "__main__":
    main()
