"""Every row of the op table: against PyTorch over types, shapes and layouts, both ways to run; its text; its identity; its types."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from conftest import FUZZ
from hypothesis import given, settings
from surface_programs import NOT_ON_THIS_DEVICE, PROGRAMS, RULE, Drawn, Pick, Sample, define, program, results, variants
from torch import Tensor

from interfuse import DataType, FusionDefinition
from interfuse.compat import direct as nvf
from interfuse.compat.definition import FusionDefinition as NvfDefinition
from interfuse.errors import DtypeError, NotOnThisDevice
from interfuse.ir.structure import structure
from interfuse.ops.promote import Rule
from interfuse.ops.table import TABLE
from interfuse.pipeline import Options, plan_key

RUNNABLE = [name for name in TABLE if name not in NOT_ON_THIS_DEVICE]
LONG = FUZZ == "long"
STRIDE = 1 if LONG else 4  # of the variants of an op, every so many have their text run; the plain one always

every_op = pytest.mark.parametrize("name", RUNNABLE)
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, about degrees of freedom and the like


def test_every_row_has_a_program() -> None:
    assert set(PROGRAMS) == set(TABLE)


def test_what_no_device_here_can_do_is_listed_and_says_so() -> None:
    assert [name for name, row in TABLE.items() if row.family == "narrow"] == list(NOT_ON_THIS_DEVICE)
    for name in NOT_ON_THIS_DEVICE:
        with pytest.raises(NotOnThisDevice, match=name):
            program(PROGRAMS[name](Pick()))


# ---- against PyTorch ------------------------------------------------------------------------------------------------------------------------

_NEAR = {torch.float64: 1e-11, torch.complex128: 1e-11, torch.float32: 4e-6, torch.complex64: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def close(got: Tensor, wanted: Tensor | Drawn, exact: bool, within: float | None = None) -> None:
    if isinstance(wanted, Drawn):
        assert (tuple(got.shape), got.dtype) == (wanted.shape, wanted.dtype)
        assert bool(((got >= wanted.low) & (got <= wanted.high)).all())
        return
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    near = 0.0 if exact else within or _NEAR.get(wanted.dtype, 0.0)
    torch.testing.assert_close(got, wanted, rtol=near, atol=near, equal_nan=True)


def run(fd: Any, sample: Sample, disable: Sequence[str] = ("codegen",)) -> list[Tensor]:
    """Stateful random numbers are the same every time."""
    torch.manual_seed(3)
    outs: list[Tensor] = fd.execute(list(sample.inputs), _disable_options=list(disable))
    return outs


def agrees(sample: Sample, disable: Sequence[str], static: bool = False) -> None:
    outs = run(program(sample, static=static), sample, disable)
    for out, wanted in zip(outs, results(sample.reference(*sample.inputs)), strict=True):
        close(out, wanted, sample.exact, sample.near)


def drawn(data: st.DataObject, name: str) -> Sample:
    return PROGRAMS[name](Pick(lambda label, n: data.draw(st.integers(0, n - 1), label), lambda n: data.draw(st.integers(0, n - 1))))


@every_op
def test_agrees_with_pytorch_op_by_op(name: str) -> None:
    @settings(max_examples=300 if LONG else 10)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        agrees(drawn(data, name), ("codegen",), static=data.draw(st.booleans(), "static sizes"))

    check()


@every_op
def test_agrees_with_pytorch_compiled(name: str) -> None:
    """The first example is the plain sample; few more in the short profile, because each may be a kernel to compile."""

    @settings(max_examples=60 if LONG else 2)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        agrees(drawn(data, name), ())

    check()


# ---- text -----------------------------------------------------------------------------------------------------------------------------------


def rebuilt(fd: Any) -> Any:
    """The definition that a definition's text makes."""
    text = repr(fd)
    is_ours = isinstance(fd, FusionDefinition)
    names: dict[str, Any] = {} if is_ours else {"FusionDefinition": NvfDefinition, "DataType": nvf.DataType}
    exec(text, names)
    with type(fd)() as again:
        names["program" if is_ours else "nvfuser_fusion"](again)
    return again


def same_bits(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(x.dtype is y.dtype and torch.equal(torch.nan_to_num(x, 77.0), torch.nan_to_num(y, 77.0)) for x, y in zip(a, b, strict=True))


@every_op
def test_text_makes_the_program_again(name: str) -> None:
    for i, (label, sample) in enumerate(variants(name)):
        if i % STRIDE:
            continue
        fd = program(sample, static=i % 2 == 1)
        again = rebuilt(fd)
        assert repr(again) == repr(fd), label
        assert identity(again) == identity(fd), (label, repr(fd))
        assert plan_key(again.source, {}, Options()) == plan_key(fd.source, {}, Options()), label
        if i == 0 or LONG:
            assert same_bits(run(again, sample), run(fd, sample)), label


@every_op
def test_text_in_nvfusers_words_makes_the_program_again(name: str) -> None:
    for i, (label, sample) in enumerate(variants(name)):
        if i % STRIDE:
            continue
        fd = program(sample, static=i % 2 == 1, definition=NvfDefinition)
        again = rebuilt(fd)
        dropped = name in ("sum", "prod") and "ops.squeeze" in repr(fd)  # nvFuser's text has a sum over dims of size 1 as a squeeze, another op
        assert (again.fusion == fd.fusion) is not dropped, (label, repr(fd))
        if i == 0 or LONG:
            assert same_bits(run(again, sample), run(fd, sample)), label
        assert repr(rebuilt(again)) == repr(again), label


# ---- identity -------------------------------------------------------------------------------------------------------------------------------


def identity(fd: FusionDefinition) -> Hashable:
    return structure(fd.source.program, fd._layouts.get)


def test_the_identity_of_nvfusers_definitions_is_this_one() -> None:
    sample = PROGRAMS["add"](Pick())
    assert program(sample, definition=NvfDefinition).fusion.key()[0] == identity(program(sample))


def _renamed(sample: Sample) -> FusionDefinition:
    """The same program with ops that nothing needs around it, all of which take names."""
    with FusionDefinition() as fd:
        handles = define(fd, sample)
        tensors = [h for h in handles if h.is_tensor()]
        dead = [fd.ops.set(t) for t in tensors]
        fd.define_scalar(7)
        fd.ops.full([2], 1.0, DataType.Float)
        made = results(sample.build(fd.ops, *handles))
        for t in (*tensors, *dead):
            fd.ops.logical_not(t)
        for out in made:
            fd.add_output(out)
    return fd


def _in_order(sample: Sample, *, copies_first: bool) -> FusionDefinition:
    """The op and copies of its inputs, defined one before or after the other, returned in one order."""
    with FusionDefinition() as fd:
        handles = define(fd, sample)
        tensors = [h for h in handles if h.is_tensor()]
        made = [] if copies_first else results(sample.build(fd.ops, *handles))
        copies = [fd.ops.set(t) for t in tensors]
        made = made or results(sample.build(fd.ops, *handles))
        for out in (*made, *copies):
            fd.add_output(out)
    return fd


@every_op
def test_programs_that_differ_in_names_are_equal(name: str) -> None:
    sample = PROGRAMS[name](Pick())
    fd = program(sample)
    assert identity(program(sample)) == identity(fd) == identity(_renamed(sample))
    assert identity(_in_order(sample, copies_first=True)) == identity(_in_order(sample, copies_first=False))
    assert hash(identity(_renamed(sample))) == hash(identity(fd))


def _changed_whole(sample: Sample) -> dict[str, FusionDefinition]:
    """Programs that do as the sample does but for what is asked of the whole: sizes, outputs, aliases."""

    def two(fd: Any, handles: list[Any], made: list[Any]) -> list[Any]:
        return [*made, fd.ops.full([2], 1.0, DataType.Float)]

    def outputs(order: Callable[[list[Any]], list[Any]]) -> Callable[..., None]:
        def add(fd: Any, handles: list[Any], made: list[Any]) -> None:
            for out in order(two(fd, handles, made)):
                fd.add_output(out)

        return add

    def alias(which: int) -> Callable[..., None]:
        def add(fd: Any, handles: list[Any], made: list[Any]) -> None:
            for out in made:
                fd.add_output(out)
            target = [h for h in handles if h.is_tensor()][which]
            fd.add_output(fd.ops.set(target), alias_input=target)

        return add

    def written(*pairs: tuple[int, int]) -> Callable[..., None]:
        """Two more inputs, and copies of them written into them."""

        def add(fd: Any, handles: list[Any], made: list[Any]) -> None:
            more = [fd.define_tensor([2]) for _ in range(2)]
            for out in made:
                fd.add_output(out)
            for source, target in pairs:
                fd.add_output(fd.ops.set(more[source]), alias_input=more[target])

        return add

    found = {
        "static": program(sample, static=True),
        "one more output": program(sample, static=True, more=outputs(list)),
        "outputs turned round": program(sample, static=True, more=outputs(lambda outs: outs[::-1])),
        "an output twice": program(sample, static=True, more=outputs(lambda outs: [*outs, outs[0]])),
    }
    for pairs in (((0, 0),), ((0, 1),), ((0, 0), (1, 1)), ((0, 1), (1, 0)), ((1, 1), (0, 0))):
        found[f"written {pairs}"] = program(sample, static=True, more=written(*pairs))
    tensors = [v for v in sample.inputs if isinstance(v, Tensor)]
    if tensors and any(n != 1 for v in tensors for n in v.shape):
        found["symbolic"] = program(sample)
    for i in range(len(tensors)):
        found[f"input {i} written"] = program(sample, static=True, more=alias(i))
    if sample.swaps:
        first, second, *rest = sample.inputs
        assert (first.shape, first.dtype, first.stride()) == (second.shape, second.dtype, second.stride())
        swapped = Sample([first, second, *rest], lambda ops, a, b, *more: sample.build(ops, b, a, *more), sample.reference)
        found["operands swapped"] = program(swapped, static=True)
    return found


@pytest.mark.parametrize(
    ("name", "square"),
    [(name, square) for name in RUNNABLE for square in (False, True) if (name, square) != ("size", True)],  # fixed equal sizes are one number
)
def test_programs_that_differ_in_one_thing_are_unequal(name: str, square: bool) -> None:
    """Any two of them: each differs from the plain one in one thing, and from each other in two."""
    made = {label: program(sample, static=True) for label, sample in variants(name, square=square)}
    made |= _changed_whole(next(variants(name, square=square))[1])
    del made["static"]  # the plain one
    first: dict[Hashable, str] = {}
    for label, fd in made.items():
        assert (twin := first.setdefault(identity(fd), label)) == label, f"{name}: {label} and {twin} are taken for the same"


def test_programs_of_different_ops_are_unequal() -> None:
    """Rows that write the same nodes for the plain samples are the exception, and listed."""
    by_key: dict[Hashable, list[str]] = {}
    for name in RUNNABLE:
        by_key.setdefault(identity(program(PROGRAMS[name](Pick()))), []).append(name)
    assert [names for names in by_key.values() if len(names) > 1] == []


# ---- types ----------------------------------------------------------------------------------------------------------------------------------

D = DataType
_TYPES = (D.Bool, D.Int32, D.Int, D.UInt64, D.Index, D.Half, D.BFloat16, D.Float, D.Double, D.ComplexFloat, D.ComplexDouble)
_WORDS = {"b": D.Bool, "i": D.Int32, "l": D.Int, "u": D.UInt64, "x": D.Index, "h": D.Half, "B": D.BFloat16, "f": D.Float, "d": D.Double,
          "c": D.ComplexFloat, "z": D.ComplexDouble, "-": None}  # fmt: skip

# What operands of each type give, a letter each in the order of _TYPES; - is a DtypeError.
_GIVES = {
    #                  bilux hBfd cz
    Rule.ARITHMETIC:  "biluxfffdcz",
    Rule.FLOATING:    "ffffffffdcz",
    Rule.PLAIN:       "biluxhBfdcz",
    Rule.FULL_FLOAT:  "-------fd--",
    Rule.BITWISE:     "bilux------",
    Rule.INTEGRAL:    "-ilux------",
    Rule.COMPARE:     "bbbbbbbbbbb",
    Rule.LOGICAL:     "bbbbbbbbbbb",
    Rule.TEST:        "bbbbbbbbbbb",
    Rule.PART:        "biluxhBfdfd",
}  # fmt: skip

# Two operands and the type that they have in common. A tensor with dims is a letter, one without in brackets, a number is itself.
_COMMON: list[tuple[str, Any, str]] = [
    ("i", "l", "l"), ("b", "i", "i"), ("x", "l", "x"), ("i", "x", "x"),
    ("h", "B", "f"), ("h", "h", "h"), ("h", "f", "f"), ("B", "d", "d"), ("f", "d", "d"), ("l", "h", "h"), ("l", "f", "f"), ("b", "d", "d"),
    ("d", "c", "z"), ("h", "c", "c"), ("l", "c", "c"), ("c", "z", "z"),
    ("f", "[d]", "f"), ("h", "[d]", "h"), ("i", "[l]", "i"), ("l", "[h]", "h"), ("i", "[d]", "d"), ("b", "[i]", "i"), ("f", "[z]", "c"),
    ("d", "[c]", "z"),
    ("[i]", "[l]", "l"), ("[f]", "[d]", "d"),
    ("i", 5, "i"), ("b", 5, "l"), ("l", 0.5, "f"), ("h", 0.5, "h"), ("d", 0.5, "d"), ("[h]", 0.5, "h"), ("f", 1j, "c"), ("d", 1j, "z"),
    ("i", 1j, "c"),
    ("f", True, "f"), ("b", True, "b"), ("c", 2, "c"),
]  # fmt: skip


def _result(name: str, *operands: Any) -> DataType | None:
    """The type of a row's result, or None for a DtypeError."""
    with FusionDefinition() as fd:
        made = [
            fd.define_tensor([] if isinstance(o, str) and o[0] == "[" else [3], dtype=_WORDS[o.strip("[]")]) if isinstance(o, str) else o
            for o in operands
        ]
        try:
            return getattr(fd.ops, name)(*made).tensor.dtype
        except DtypeError:
            return None


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name)
def test_types_by_rule(rule: Rule) -> None:
    """Every row of the rule, for each type alone, and for operands of two types."""
    gives = dict(zip(_TYPES, (_WORDS[letter] for letter in _GIVES[rule]), strict=True))
    names = [name for name, own in RULE.items() if own == rule.name]
    assert names
    letters = {dtype: letter for letter, dtype in _WORDS.items()}
    for name in names:
        assert TABLE[name].dtype_rule == rule.value
        arity = TABLE[name].signature.count(",") + 1
        for dtype, wanted in gives.items():
            assert _result(name, *[letters[dtype]] * arity) is wanted, (name, dtype)
        for a, b, common in _COMMON if arity > 1 else ():
            wanted = gives[_WORDS[common]]  # type: ignore[index]
            for pair in ((a, b), (b, a)):
                assert _result(name, *pair, *[a] * (arity - 2)) is wanted, (name, pair)


# What the other rows give for a tensor of each type of _TYPES; letters of several results follow each other.
_OTHERS: dict[str, tuple[Callable[..., Any], str]] = {
    "sum":        (lambda ops, x: ops.sum(x, 0), "l l l l l h B f d c z"),
    "prod":       (lambda ops, x: ops.prod(x, 0), "l l l l l h B f d c z"),
    "sum to f64": (lambda ops, x: ops.sum(x, 0, dtype=D.Double), "d d d d d d d d d d d"),
    "max":        (lambda ops, x: ops.max(x, 0), "b i l u x h B f d - -"),
    "min":        (lambda ops, x: ops.min(x, 0), "b i l u x h B f d - -"),
    "var":        (lambda ops, x: ops.var(x, 0), "- - - - - f f f d f d"),
    "var_mean":   (lambda ops, x: ops.var_mean(x, 0), "- - - - - - - ff dd fc dz"),
    "welford":    (lambda ops, x: ops.welford(x, 0), "- - - - - ffx ffx ffx ddx cfx zdx"),
    "where":      (lambda ops, x: ops.where(ops.isreal(x), x, x), "b i l u x h B f d c z"),
    "imag":       (lambda ops, x: ops.imag(x), "- - - - - - - - - f d"),
    "complex":    (lambda ops, x: ops.complex(x, x), "- - - - - - - c z - -"),
    "addcmul":    (lambda ops, x: ops.addcmul(x, x, x, 1), "l i l u x f f f d c z"),
    "cast":       (lambda ops, x: ops.cast(x, D.Half), "h h h h h h h h h h h"),
    "matmul":     (lambda ops, x: ops.matmul(x, x), "- i l u x h B f d c z"),
    "topk":       (lambda ops, x: ops.topk(x, 1), "bl il ll ul xl hl Bl fl dl cl zl"),
    "argsort":    (lambda ops, x: ops.argsort(x, 0), "l l l l l l l l l l l"),
    **{name: (lambda ops, x, name=name: getattr(ops, name)(x), "b i l u x h B f d c z") for name in ("set", "segment_set", "triu")},
    **{name: (lambda ops, x, name=name: getattr(ops, name)(x, 0), "b i l u x h B f d c z") for name in ("cumsum", "cumprod", "cummax", "cummin")},
    **{name: (lambda ops, x, name=name: getattr(ops, name)(x), "- - - - - h B f d - -") for name in ("rand_like", "randn_like")},
}  # fmt: skip


@pytest.mark.parametrize("name", _OTHERS)
def test_types_of_other_rows(name: str) -> None:
    call, row = _OTHERS[name]
    for dtype, wanted in zip(_TYPES, row.split(), strict=True):
        with FusionDefinition() as fd:
            x = fd.define_tensor([3, 3], dtype=dtype)
            try:
                made = [m.tensor.dtype for m in results(call(fd.ops, x))]
            except DtypeError:
                made = [None]
        assert made == [_WORDS[letter] for letter in wanted], (name, dtype)
