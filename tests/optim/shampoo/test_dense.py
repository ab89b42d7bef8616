"""The trainer's Shampoo: where its state is."""

import subprocess
import sys

import pytest

PLACED = """
import tensorflow as tf
from ctr.optim.shampoo.dense import DenseShampoo
from ctr.optim.shampoo.options import ShampooOptions

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
optimizer = DenseShampoo(ShampooOptions(momentum=0.9))
with tf.device("CPU:1"):
    optimizer.build({"w": tf.Variable(tf.ones([3, 2]))})
for name, variable in optimizer.variables.items():
    print(name, variable.device[-5:])
"""


@pytest.mark.slow
def test_totals_are_in_the_memory_of_the_host_and_all_else_is_where_the_step_runs():
    done = subprocess.run([sys.executable, "-c", PLACED], capture_output=True, text=True, check=True)
    places = dict(line.split() for line in done.stdout.splitlines())
    assert {name.rpartition("/")[2] for name, place in places.items() if place == "CPU:0"} == {"total"}
    others = {name.rpartition("/")[2] for name, place in places.items() if place == "CPU:1"}
    assert {"window", "root", "momentum", "accumulator", "status", "step"} <= others
