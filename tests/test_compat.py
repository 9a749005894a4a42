"""nvFuser's surface: definitions, text, identity, caches, executors, options, profiles."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from interfuse.compat import direct as nvf
from interfuse.compat import install_as
from interfuse.compat.direct import DataType, FusionDefinition, LRUCache, LruFusionCache, ParallelType, PythonProfiler
from interfuse.compat.executors import runs_on_gpu
from interfuse.errors import (
    ArgumentTypeError,
    CpuTensorError,
    DefinitionError,
    ExecutorsMixed,
    MeshError,
    NoReproInputs,
    NoScheduler,
    NotCompiled,
    OptionError,
    ShapeError,
    UndefinedProgram,
    ValidationError,
)
from interfuse.frontend.descriptors import compute_tensor_descriptor


def defined(build, **flags):
    with FusionDefinition() as fd:
        build(fd, **flags)
    return fd


def add_relu(fd):
    x = fd.define_tensor([-1, 4])
    y = fd.define_tensor([-1, 4])
    fd.add_output(fd.ops.relu(fd.ops.add(x, y)))


def captured(fd):
    """The definition that a definition's text makes."""
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    return again


# ---- the module ----------------------------------------------------------------------------------------------------------------------------------


def test_installed_names_import():
    install_as("stand_in_for_nvfuser")
    try:
        module = importlib.import_module("stand_in_for_nvfuser")
        assert importlib.import_module("stand_in_for_nvfuser.ops") is module.ops
        assert importlib.import_module("stand_in_for_nvfuser.pytorch_utils").torch_dtype_to_nvfuser_dtype(torch.int32) is DataType.Int32
        assert all(hasattr(module, n) for n in module.__all__)
    finally:
        for name in [n for n in sys.modules if n.startswith("stand_in_for_nvfuser")]:
            del sys.modules[name]


@pytest.mark.parametrize("other", ["0.2.8", "0.2.36", "0.2.35+gitabc"])
def test_version_is_at_least(other):
    assert nvf.version() >= other and nvf.version() >= nvf.nvfuser_direct_version.Version(other)


@pytest.mark.parametrize("other", ["0.29.0", "0.2.100", "1"])
def test_version_is_below(other):
    assert nvf.version() < other and not nvf.version() >= other and nvf.version() != other


def test_enumerations_list_their_members_and_are_true():
    entries = getattr(nvf.SchedulerType, "__entries")
    assert entries["none"][0] is nvf.SchedulerType.none and nvf.SchedulerType.none
    assert str(nvf.MemoryType.shared) == "MemoryType.shared" and getattr(nvf.MemoryType, "global")


# ---- defining ------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "strides", "contiguity", "order"),
    [
        ([4], [1], [True], [0]),
        ([4], [2], [False], [0]),
        ([], [], [], []),
        ([3, 4], [1, 3], [True, True], [0, 1]),
        ([3, 1, 4], [8, 9, 2], [None, True, False], [1, 2, 0]),
        ([3, 5, 4], [4, 0, 1], [True, None, True], [2, 1, 0]),
        ([2, 3, 4], [1, 0, 2], [True, None, True], [0, 1, 2]),
    ],
)
def test_tensor_descriptor(sizes, strides, contiguity, order):
    assert compute_tensor_descriptor(sizes, strides) == (contiguity, order)


def test_tensor_descriptor_refuses_negative_strides():
    with pytest.raises(ShapeError, match="negative"):
        compute_tensor_descriptor([2], [-1])


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (([-1, 1],), {}, "shape=[-1, 1], contiguity=[False, None], dtype=DataType.Float, is_cpu=False"),
        (([2, 3], True, DataType.Half), {}, "shape=[2, 3], contiguity=[True, True], dtype=DataType.Half, is_cpu=False"),
        (([2, 3], [True, None]), {}, "shape=[2, 3], contiguity=[True, None], dtype=DataType.Float, is_cpu=False"),
        (([2, 1], [3, 1]), {}, "shape=[-1, 1], contiguity=[False, None], dtype=DataType.Float, is_cpu=False"),
        ((), {"sizes": [2, 3], "strides": [1, 2], "static_sizes": True},
         "shape=[2, 3], contiguity=[True, True], dtype=DataType.Float, is_cpu=False, stride_order=[0, 1]"),
        ((), {"shape": [2, 3], "stride_order": [-1, 0]}, "shape=[2, 3], contiguity=[False, False], dtype=DataType.Float, is_cpu=False"),
        ((), {"shape": [], "contiguity": [], "is_cpu": True}, "shape=[], contiguity=[], dtype=DataType.Float, is_cpu=True"),
    ],
)  # fmt: skip
def test_define_tensor_spellings(args, kwargs, text):
    fd = defined(lambda fd: fd.add_output(fd.ops.set(fd.define_tensor(*args, **kwargs))))
    assert f"tv0 = fd.define_tensor({text})" in repr(fd)
    assert captured(fd).fusion == fd.fusion


@pytest.mark.parametrize(
    ("kwargs", "error"),
    [
        ({"shape": [-2]}, ShapeError),
        ({"shape": [2.0]}, ArgumentTypeError),
        ({"shape": [2**63]}, ArgumentTypeError),
        ({"shape": [2], "contiguity": [2]}, ArgumentTypeError),
        ({"shape": [2], "contiguity": [True, True]}, ShapeError),
        ({"shape": [2, 3], "stride_order": [0, 0]}, ShapeError),
        ({"shape": [2, 3], "stride_order": [0, 2]}, ShapeError),
        ({"shape": [2], "sizes": [2]}, ArgumentTypeError),
        ({"sizes": [2]}, ArgumentTypeError),
        ({"sizes": [2, 3], "strides": [1]}, ShapeError),
        ({"shape": [2], "dtype": torch.float32}, ArgumentTypeError),
    ],
)
def test_define_tensor_refuses(kwargs, error):
    with pytest.raises(error), FusionDefinition() as fd:
        fd.define_tensor(**kwargs)


def test_scalars_and_vectors():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        rows, columns = fd.define_vector(2)
        scale = fd.define_scalar(DataType.Double)
        offset = fd.define_scalar(2, dtype=DataType.Int)
        assert rows.is_symbolic() and not offset.is_symbolic()
        fd.add_output(fd.ops.add(fd.ops.mul(fd.ops.reshape(x, [rows, columns]), scale), offset))
    value = torch.arange(6.0)
    for out in (fd.execute([value, [2, 3], 0.5]), fd.execute([value, 2, 3, 0.5]), captured(fd).execute([value, (2, 3), 0.5])):
        torch.testing.assert_close(out[0], value.reshape(2, 3) * 0.5 + 2)


def test_from_pytorch_takes_cpu_tensors_where_there_is_no_gpu(monkeypatch):
    if not runs_on_gpu():
        defined(lambda fd: fd.from_pytorch(torch.ones(3)))
    monkeypatch.setattr("interfuse.compat.definition.runs_on_gpu", lambda: True)
    defined(lambda fd: fd.from_pytorch(torch.ones(())))
    with pytest.raises(CpuTensorError, match="only scalar CPU"):
        defined(lambda fd: fd.from_pytorch(torch.ones(3)))


def test_an_output_of_cpu_scalars_alone(monkeypatch):
    def build(fd, *, mixed):
        x, y = fd.from_pytorch(torch.ones(())), fd.define_tensor([2])
        three = fd.ops.add(x, 2.0)
        fd.add_output(fd.ops.add(y, three) if mixed else three)

    monkeypatch.setattr("interfuse.compat.executors.runs_on_gpu", lambda: True)
    inputs = [torch.ones(()), torch.ones(2)]
    torch.testing.assert_close(defined(build, mixed=True).execute(inputs)[0], torch.full((2,), 4.0))
    with pytest.raises(NoScheduler, match="KernelExecutor does not support"):
        defined(build, mixed=False).execute(inputs)


def test_a_mesh_cuts_even_parts():
    mesh = nvf.multidevice.DeviceMesh([0])
    assert nvf.multidevice.DeviceMesh(torch.arange(2)) == nvf.multidevice.DeviceMesh(range(2))
    torch.testing.assert_close(mesh.shard_tensor(torch.arange(6.0).reshape(2, 3), 1), torch.arange(6.0).reshape(2, 3))
    with pytest.raises(MeshError, match="2 equal parts"):
        nvf.multidevice.DeviceMesh([0, 1]).shard_tensor(torch.ones(3), 0)


def test_ops_that_nothing_needs_still_ask_for_sizes():
    def build(fd, *, asks):
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        if asks:
            fd.ops.add(x, y)
        fd.add_output(fd.ops.neg(x))
        fd.add_output(fd.ops.neg(y))

    assert defined(build, asks=True).fusion != defined(build, asks=False).fusion


def test_module_functions_act_on_the_guarded_fusion():
    fusion = nvf.Fusion()
    with nvf.FusionGuard(fusion):
        x = nvf.define_tensor([2])
        fusion.add_output(nvf.ops.neg(x))
    assert fusion.inputs() == [x] and len(fusion.outputs()) == 1
    with pytest.raises(DefinitionError, match="no fusion is being defined"):
        nvf.ops.neg(x)


def test_an_error_inside_the_block_is_shown_and_raised(capsys):
    with pytest.raises(ZeroDivisionError), FusionDefinition():
        _ = 1 / 0
    assert "ZeroDivisionError" in capsys.readouterr().out


# ---- text ----------------------------------------------------------------------------------------------------------------------------------------


def test_text_follows_the_outputs_and_leaves_out_defaults():
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1, -1], contiguity=True)
        b = fd.define_tensor([-1, 1], contiguity=[True, None], dtype=DataType.Half)
        fd.ops.exp(a)  # nothing needs it
        late = fd.ops.sum(b, [-1], False)
        early = fd.ops.sum(fd.ops.mul(a, 2.5), [0], True)
        fd.add_output(fd.ops.add(early, 0.1))
        fd.add_output(late)
    assert repr(fd) == (
        "def nvfuser_fusion(fd : FusionDefinition) -> None :\n"
        "    tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)\n"
        "    tv1 = fd.define_tensor(shape=[-1, 1], contiguity=[True, None], dtype=DataType.Half, is_cpu=False)\n"
        "    tv4 = fd.ops.mul(tv0, 2.50000)\n"
        "    tv5 = fd.ops.sum(tv4, dims=[0], keepdim=True, dtype=DataType.Float)\n"
        "    tv6 = fd.ops.add(tv5, 0.100000)\n"
        "    tv3 = fd.ops.squeeze(tv1, dims=[1])\n"
        "    fd.add_output(tv6)\n"
        "    fd.add_output(tv3)\n"
    )


def test_text_keeps_every_digit_of_a_constant():
    value = 0.1 + 1e-12
    fd = defined(lambda fd: fd.add_output(fd.ops.mul(fd.define_tensor([1], dtype=DataType.Double), value)))
    assert f"fd.ops.mul(tv0, {value!r})" in repr(fd)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), True, 7, -1e300, 1 + 2j])
def test_constants_come_back(value):
    fd = defined(lambda fd: fd.add_output(fd.ops.add(fd.define_tensor([2], dtype=DataType.ComplexDouble), value)))
    assert captured(fd).fusion == fd.fusion


def test_text_with_sizes_runs():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        y = fd.define_tensor([-1])
        columns = x.size(1)
        fd.add_output(fd.ops.slice(fd.ops.broadcast_in_dim(y, x.shape(), [1]), [0, 1], [fd.ops.size(x, 0), fd.ops.sub(columns, 1)]))
    inputs = [torch.ones(3, 5), torch.arange(5.0)]
    again = captured(fd)
    assert again.fusion == fd.fusion
    torch.testing.assert_close(fd.execute(inputs)[0], again.execute(inputs)[0])


def test_written_inputs_are_in_the_text():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.add(x, 1.0), x)
    again = captured(fd)
    assert "fd.add_output(tv1, tv0)" in repr(fd) and again.fusion == fd.fusion
    value = torch.zeros(3)
    assert again.execute([value]) == [] and value.tolist() == [1.0, 1.0, 1.0]


def test_repro_script_runs():
    fd = defined(add_relu)
    inputs = [torch.ones(3, 4), torch.ones(4, 3).t()]
    with pytest.raises(NoReproInputs, match="save_repro_inputs"):
        fd.last_repro_script()
    fd.execute(inputs, save_repro_inputs=True)
    script = fd.last_repro_script()
    assert script == fd.repro_script_for(inputs) and "as_strided((3, 4), (1, 3))" in script
    module = install_as("nvfuser_direct")
    try:
        exec(script, {})
    finally:
        assert sys.modules.pop("nvfuser_direct") is module
        for name in [n for n in sys.modules if n.startswith("nvfuser_direct.")]:
            del sys.modules[name]


def test_math_shows_loops():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 8])
        y = fd.ops.sum(x, [1])
        fd.add_output(y)
        y.split(0, 2)
        y.axis(1).parallelize(ParallelType.block_x)
    assert str(x) == "T0_g_float[iS0{4}, iS1{8}]"
    assert str(y) == "T1_g_float[iS4{2}, ithreadIdx.x5{2}, rS3{8}]"
    assert f"  {y}\n" in fd.fusion.print_math() and fd.fusion.print_kernel()


# ---- identity ------------------------------------------------------------------------------------------------------------------------------------


def chain(fd, constant=2.0, dtype=DataType.Float, contiguity=True, shape=(-1, 4), swap=False, dead=False, second=False, alias=False, placed=False):
    x = fd.define_tensor(list(shape), contiguity=contiguity, dtype=dtype)
    y = fd.define_tensor([-1, 4])
    if dead:
        fd.ops.exp(x)
    low = fd.ops.sub(y, x) if swap else fd.ops.sub(x, y)
    out = fd.ops.mul(low, constant)
    fd.add_output(out, alias_input=y) if alias else fd.add_output(out)
    if second:
        fd.add_output(low)
    if placed:
        out.split(0, 2)


def test_same_up_to_names_and_dead_ops():
    assert defined(chain).fusion == defined(chain).fusion
    assert defined(chain).fusion == defined(chain, dead=True).fusion


@pytest.mark.parametrize(
    "change",
    [
        {"constant": 3.0},
        {"dtype": DataType.Double},
        {"contiguity": False},
        {"shape": (-1, -1)},
        {"shape": (1, 4)},
        {"swap": True},
        {"second": True},
        {"alias": True},
        {"placed": True},
    ],
    ids=str,
)
def test_different(change):
    assert defined(chain).fusion != defined(chain, **change).fusion


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (1.0, 1 + 0j), (float("inf"), float("-inf"))])
def test_constants_that_python_calls_equal_differ(a, b):
    assert defined(chain, constant=a).fusion != defined(chain, constant=b).fusion


def test_equal_symbols_matter():
    def build(fd, *, shared):
        x = fd.define_tensor([-1, -1])
        size = x.size(0) if shared else x.size(1)
        fd.add_output(fd.ops.full([size], 1.0, DataType.Float))
        fd.add_output(fd.ops.neg(x))

    assert defined(build, shared=True).fusion != defined(build, shared=False).fusion


def test_fusions_that_are_the_same_share_what_is_compiled():
    one, two = defined(chain), defined(chain, dead=True)
    inputs = [torch.ones(3, 4), torch.zeros(3, 4)]
    one.execute(inputs)
    two.execute(inputs)
    assert two.fec._shared is one.fec._shared and two.fec.fusion() is not one.fec.fusion()


# ---- caches --------------------------------------------------------------------------------------------------------------------------------------


def test_lru_cache_counts_and_forgets():
    cache = LRUCache(max_fusions=2)
    assert cache.stats() == "Max Fusions Allowed: 2\nThe fusion cache is empty.\n"
    first = cache.cache_compile(defined(chain).fusion)
    cache.cache_compile(defined(chain, constant=3.0).fusion)
    assert cache.cache_compile(defined(chain).fusion) is first
    cache.cache_compile(defined(chain, constant=4.0).fusion)  # the one with 3.0 leaves
    assert cache.num_fusions() == 2 and cache.cache_compile(defined(chain).fusion) is first
    assert cache.stats() == (
        "Max Fusions Allowed: 2\nTotal Fusions in Cache: 2\nTotal Unique Fusions Compiled: 3\nCache Hits by LRU ordering:\n"
        "\t0 -> 0 hits\n\t1 -> 2 hits\nCache Lookups: 5\nCache Hits: 2\nHit Rate: 40%\n"
    )
    with pytest.raises(DefinitionError):
        LRUCache(max_fusions=0)


def test_lru_decorator():
    @LruFusionCache(max_fusions=4)
    def build(constant):
        return defined(chain, constant=constant)

    one, two = build(2.0), build(2.0)
    assert one.fec is two.fec and build.num_fusions() == 1 and "Cache Hits: 1" in build.stats()
    torch.testing.assert_close(two.execute([torch.ones(1, 4), torch.zeros(1, 4)])[0], torch.full((1, 4), 2.0))


# ---- executing -----------------------------------------------------------------------------------------------------------------------------------


def test_undefined_and_empty():
    with pytest.raises(UndefinedProgram, match="does not exist"):
        FusionDefinition().execute([])
    with FusionDefinition() as fd:
        pass
    with pytest.raises(UndefinedProgram, match="empty"):
        fd.execute([])


def test_executors_do_not_mix():
    inputs = [torch.ones(2, 4), torch.ones(2, 4)]
    compiled, manual = defined(add_relu), defined(add_relu)
    compiled.execute(inputs)
    torch.testing.assert_close(manual.manual_execute(inputs)[0], torch.full((2, 4), 2.0))
    with pytest.raises(ExecutorsMixed, match=r"Use execute\(\)"):
        compiled.manual_execute(inputs)
    with pytest.raises(ExecutorsMixed, match=r"Use manual_execute\(\)"):
        manual.execute(inputs)
    with pytest.raises(NotCompiled):
        nvf.KernelExecutor().run(inputs)


def test_inspection_of_an_executor():
    fd = defined(add_relu)
    inputs = [torch.ones(2, 4), torch.ones(2, 4)]
    fd.execute(inputs)
    assert fd.fec.is_compiled(inputs) and not fd.fec.is_compiled([torch.ones(3, 4)] * 2)
    assert "k0" in fd.fec.get_scheduled_ir(inputs) and fd.fec.get_scheduled_ir(inputs) == fd.fec.get_most_recent_scheduled_ir()
    assert fd.fec.get_cuda_kernel(inputs) and fd.fec.get_output_shardings() == []


def test_kernel_schedules_are_recorded_and_change_nothing():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        y = fd.ops.sum(fd.ops.exp(x), [1])
        fd.add_output(y)
        cached = x.cache_after(nvf.LoadStoreOpType.tma)
        cached.set_memory_type(nvf.MemoryType.shared)
        y.split(1, 8)
        y.axis(0).parallelize(ParallelType.grid_x)
        partial = y.rfactor([1])
        partial.axis(-1).parallelize(ParallelType.block_x)
        y.cache_before()
        fd.sched.transform_like(partial)
        fd.sched.inline_most()
    value = torch.randn(3, 20)
    torch.testing.assert_close(fd.manual_execute([value])[0], value.exp().sum(1))


@pytest.mark.parametrize(
    ("build", "fits"),
    [
        (lambda fd, x: fd.ops.exp(x), "pointwise"),
        (lambda fd, x: fd.ops.exp(fd.ops.sum(x, [1])), "reduction"),
        (lambda fd, x: fd.ops.div(x, fd.ops.sum(x, [1], True)), "inner_persistent"),
        (lambda fd, x: fd.ops.div(x, fd.ops.sum(x, [0], True)), "outer_persistent"),
        (lambda fd, x: fd.ops.matmul(x, x), "expr_eval"),
    ],
    ids=["pointwise", "reduction", "rows", "columns", "matmul"],
)
def test_compatible_scheduler(build, fits):
    with FusionDefinition() as fd:
        fd.add_output(build(fd, fd.define_tensor([4, 4])))
        fusion, inputs = fd.fusion, [torch.ones(4, 4)]
        assert [s.name for s in nvf.schedule.find_compatible_schedulers(fusion, inputs)] == [fits]
        assert nvf.schedule.can_schedule(fusion, getattr(nvf.SchedulerType, fits), inputs) == (True, "")
        refused, why = nvf.schedule.can_schedule(fusion, nvf.SchedulerType.transpose, inputs)
        assert not refused and "Scheduler _transpose_ ***rejected***" in why
        with pytest.raises(NoScheduler):
            nvf.schedule.compute_heuristics(fusion, nvf.SchedulerType.transpose, inputs)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([2.0, 2.0], r"Expected input 0, T0_g_float\[iS0\{i0\}\], to be an at::Tensor but got scalar 2"),
        ([torch.ones(3), torch.ones(3)], r"Expected input 1, d2, to be a scalar but got float tensor of rank 1"),
        ([torch.ones(3).half(), 2.0], r"to be bound to a tensor of dtype float, but got a tensor of dtype __half"),
        ([torch.ones(3), 2 + 1j], r"Scalar value \(2,1\) is not compatible with the expected data type: double\."),
    ],
)
def test_wording_of_inputs_that_do_not_fit(values, match):
    fd = defined(lambda fd: fd.add_output(fd.ops.mul(fd.define_tensor([-1]), fd.define_scalar())))
    with pytest.raises(RuntimeError, match=match):
        fd.execute(values)


# ---- options, profiles, validation ---------------------------------------------------------------------------------------------------------------


def test_options_of_nvfuser_are_accepted_and_others_are_not(monkeypatch):
    fd, inputs = defined(add_relu), [torch.ones(2, 4), torch.ones(2, 4)]
    fd.execute(inputs, _enable_options=["host_ir_lowering"], _disable_options=["infer_contiguity", "codegen"])
    with pytest.raises(OptionError, match="nearest one known is 'fuse_matmul'"):
        fd.execute(inputs, _enable_options=["fuse_matmuls"])
    monkeypatch.setenv("NVFUSER_DISABLE", "fma,kernel_reuse(2)")
    fd.execute(inputs)
    monkeypatch.setenv("NVFUSER_ENABLE", "fmaa")
    with pytest.raises(OptionError, match="NVFUSER_ENABLE"):
        fd.execute(inputs)


def test_a_matmul_that_nothing_may_run():
    fd = defined(lambda fd: fd.add_output(fd.ops.matmul(fd.define_tensor([2, 2]), fd.define_tensor([2, 2]))))
    inputs = [torch.ones(2, 2), torch.ones(2, 2)]
    with pytest.raises(NoScheduler, match="Can not find a scheduler"):
        fd.execute(inputs, _enable_options=["fuse_matmul"], _disable_options=["matmul_expr_eval"])
    fd.execute(inputs)


def test_profile_names_what_ran():
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, 8]), fd.define_tensor([8, 8])
        fd.add_output(fd.ops.exp(fd.ops.linear(x, w)))
    with PythonProfiler() as prof:
        fd.execute([torch.ones(4, 8), torch.ones(8, 8)])
    assert prof.profile.kernel_profiles[0].scheduler == "expr_eval" and prof.profile.segments == 2
    assert prof.profile.input_bytes == 4 * (32 + 64) and prof.profile.output_bytes == 4 * 32 and prof.profile.host_time_ms > 0
    assert all(k.name for k in prof.profile.kernel_profiles)
    manual = defined(add_relu)
    with PythonProfiler(auto_scheduled=False) as prof:
        manual.manual_execute([torch.ones(2, 4), torch.ones(2, 4)])
    assert [k.scheduler for k in prof.profile.kernel_profiles] == ["user"] and prof.profile.fusion_id >= 0


def test_validate_compares():
    def build(fd):
        x = fd.define_tensor([-1, -1], dtype=DataType.BFloat16)
        fd.add_output(fd.ops.cast(fd.ops.sum(fd.ops.exp(x), [1]), DataType.BFloat16))

    value = torch.randn(5, 300).bfloat16()
    out = defined(build).validate([value])
    torch.testing.assert_close(out[0], value.float().exp().sum(1).bfloat16())
    defined(build).validate([value], [out[0]])
    for wrong in ([out[0] * 2], [out[0][:2]], []):
        with pytest.raises(ValidationError):
            defined(build).validate([value], wrong)
    with pytest.raises(ValidationError):
        defined(build).manual_validate([value], [out[0] * 2])


def test_tolerances_grow_with_what_is_summed():
    def build(fd):
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.sum(x, [1]))
        fd.add_output(x)
        fd.add_output(fd.ops.gt(x, 0.0))

    (summed, _), (kept, _), exact = nvf.get_val_tolerances(defined(build).fusion, [torch.ones(2, 10000)])
    assert summed == pytest.approx(100 * kept) and exact == (0.0, 0.0)


def test_validate_definition():
    assert defined(add_relu).validate_definition() == (True, "")
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        x.axis(0).parallelize(ParallelType.mesh_x)
        fd.add_output(fd.ops.neg(x))
    stands, why = fd.validate_definition()
    assert not stands and "set_device_mesh" in why
