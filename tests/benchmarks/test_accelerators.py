"""Steps for accelerators: what their programs are checked for, and which parameter is which variable."""

import numpy as np
import pytest
import reference
from accelerators import checks, kinds, lowering

pytestmark = pytest.mark.soak


CLEAN = "HloModule a, input_output_alias={ {0}: (1, {}, may-alias) }\n  %x = f32[4]{0} add(f32[4] %a, f32[4] %b)\n"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("%x = f64[] convert(f32[] %a)", "float64"),
        ("%x = ((f32[2], u32[]), token[]) infeed(token[] %a)", "calls the host"),
        ("%x = (f32[], u32[], token[]) send(f32[] %a, token[] %b), is_host_transfer=true", "calls the host"),
        ('%x = f32[] custom-call(), custom_call_target="xla_python_cpu"', "custom calls: xla_python"),
        ("%x = f32[4,<=128]{1,0} add(%a, %b)", "dynamic shapes"),
    ],
)
def test_what_a_tpu_cannot_run_is_found_in_the_program_and_in_what_the_compiler_made(line, fault):
    assert checks.program_faults(CLEAN, CLEAN) == []
    (program,) = checks.program_faults(CLEAN + line, CLEAN)
    (compiled,) = checks.program_faults(CLEAN, CLEAN + line)
    assert program.startswith("the step ") and fault in program
    assert compiled.startswith("the compiled step ") and fault in compiled
    # What the compiler marks itself is no fault, nor is float64 where it is asked for.
    mark = '%x = u32[] custom-call(s64[] %a), custom_call_target="X64SplitLow"'
    assert checks.program_faults(CLEAN, CLEAN + mark) == [] != checks.program_faults(CLEAN + mark, CLEAN)
    assert checks.program_faults(CLEAN + "f64[2]", CLEAN + "f64[2]", may_be_wide=True) == []


def test_limits_and_state_that_is_copied():
    assert not checks.number_faults("v5e", 10**9, 10**8, 1.05)
    assert not checks.number_faults("v6e", 20 * 2**30, 0, 1.0)
    for numbers, fault in (((20 * 2**30, 0, 1.0), "GiB, more than the 16 of"), ((0, 0, 1.2), "1.20 times")):
        assert fault in checks.number_faults("v5e", *numbers)[0]
    assert "temporary" in checks.number_faults("v5e", 2 * 10**9, 6 * 10**8, 1.0)[0]
    aliases = lowering.output_aliases("HloModule a, input_output_alias={ {2}: (5, {}, may-alias) }, x={}")
    assert aliases == {2: 5}
    assert checks.in_place_faults(["a", "b"], 2, aliases) == ["not updated in place: b"]


@pytest.mark.parametrize("kind", ["Shampoo", "ranking, distillation, constraints", "defaults"])
def test_the_parameters_of_a_lowered_step_are_named(kind):
    built = kinds.build(kinds.KINDS[kind], reference.TINY, kinds.SMALL)
    lowered = built.lowered()
    head = lowered.text.partition("\n")[0]
    layout = head.partition("entry_computation_layout={(")[2].partition(")->")[0]
    types = [part.split("{")[0].split()[-1] for part in layout.replace("*/", " ").split(", ")]
    short = {"float32": "f32", "int32": "s32", "int64": "s64", "bool": "pred"}
    named = [*lowered.arguments, *lowered.state]
    specs = [lowered.specs[name] for name in named]
    expected = [f"{short[kind]}[{','.join(map(str, shape))}]" for shape, kind, *_ in specs]
    assert types == expected
    assert len(set(named)) == len(named)
    # What it learns it returns, in the same memory.
    assert {name for name in lowered.state if name.startswith(("rows/", "dense/"))} <= {*lowered.changed}
    assert "f64[" not in lowered.text
    assert lowered.state_bytes == sum(
        int(np.prod(built.state.variables()[name].read_value().shape))
        * built.state.variables()[name].dtype.size
        for name in lowered.state
    )
