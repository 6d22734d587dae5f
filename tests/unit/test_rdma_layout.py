"""Planning of copies, held against numpy's own."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.actors.wire.copying import view_at
from roost.rdma.layout import Layout, matched, packed, plan
from roost.rdma.memory import describe, span_of


def apply(src, dst):
    """Copy by the plan, byte runs through memoryviews."""
    a, b = describe(src), describe(dst)
    runs = plan(a.layout, b.layout)
    for s, d, n in zip(runs.src, runs.dst, runs.n, strict=True):
        view_at(b.address + d, n)[:] = view_at(a.address + s, n)
    assert sum(runs.n) == runs.nbytes == src.nbytes
    return runs


@st.composite
def views(draw, shape, dtype):
    """An array of a shape with values, as a transposed, gapped, reversed view of a larger block."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in shape]
    outer = [abs(steps[i]) * shape[i] + draw(st.integers(0, 1)) for i in order]
    block = np.zeros(outer, dtype)
    view = block.transpose(np.argsort(order)) if shape else block
    stepped = view[(*(slice(None, None, s) for s in steps), ...)]
    return stepped[(*(slice(0, n) for n in shape), ...)]


DTYPES = [np.uint8, np.float16, np.float32, np.complex128]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_planned_copy_is_numpys_copy(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=4)))
    dtype = data.draw(st.sampled_from(DTYPES))
    src, dst = data.draw(views(shape, dtype)), data.draw(views(shape, dtype))
    src[...] = np.arange(1, src.size + 1).reshape(shape)
    runs = apply(src, dst)
    np.testing.assert_array_equal(dst, src)
    ends = [(s + n, d + n) for s, d, n in zip(runs.src, runs.dst, runs.n, strict=True)]
    starts = list(zip(runs.src, runs.dst, strict=True))
    assert all(end != start for end, start in zip(ends, starts[1:], strict=False)), "neighbours are merged"


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_many_runs_are_planned_alike_with_and_without_numpy(a, b, c):
    src = np.arange(a * b * c, dtype=np.int16).reshape(a, b, c)
    dst = np.zeros((c, b, a), np.int16).T
    fast = apply(src, dst)
    np.testing.assert_array_equal(src, dst)
    from roost.rdma import layout

    limit, layout._NUMPY_FROM = layout._NUMPY_FROM, 1 << 60
    try:
        assert apply(src, dst) == fast
    finally:
        layout._NUMPY_FROM = limit


def test_a_plan_comes_in_bounded_parts(monkeypatch):
    from roost.rdma import layout

    monkeypatch.setattr(layout, "MOST_RUNS", 7)
    src = np.arange(2 * 3 * 4 * 5, dtype=np.int16).reshape(2, 3, 4, 5)
    dst = np.zeros((5, 4, 3, 2), np.int16).T
    found = list(layout.parts(describe(src).layout, describe(dst).layout))
    assert max(map(len, found)) <= 7 and sum(r.nbytes for r in found) == src.nbytes
    for runs in found:
        for s, d, n in zip(runs.src, runs.dst, runs.n, strict=True):
            view_at(describe(dst).address + d, n)[:] = view_at(describe(src).address + s, n)
    np.testing.assert_array_equal(src, dst)


def test_equal_layouts_are_one_run_even_when_permuted():
    block = np.zeros((4, 6, 5))
    assert len(plan(describe(block.T).layout, describe(block.copy().T).layout)) == 1
    assert len(plan(describe(block[::-1]).layout, describe(block[::-1].copy()[::1]).layout)) == 4
    assert len(plan(describe(block[::-1]).layout, describe(block.copy()[::-1]).layout)) == 1


def test_rows_of_a_matrix_are_one_run_each():
    wide = np.zeros((10, 8), np.float32)
    runs = plan(describe(wide[:, :4]).layout, packed("float32", 4, (10, 4)))
    assert list(runs.n) == [16] * 10 and list(runs.src) == [32 * i for i in range(10)]


def test_ten_thousand_rows_are_planned_in_milliseconds():
    src, dst = Layout("float32", 4, (10_000, 16), (128, 4)), packed("float32", 4, (10_000, 16))
    plan(src, dst)
    begin = time.perf_counter()
    assert len(plan(src, dst)) == 10_000
    assert time.perf_counter() - begin < 0.25


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3, 2)])
def test_empty_arrays_need_no_runs(shape):
    array = np.zeros(shape)
    assert len(plan(describe(array).layout, describe(array.copy()).layout)) == 0


def test_a_number_without_dimensions_is_one_run():
    assert apply(np.array(3.0), np.array(0.0)).n[0] == 8


def test_an_expanded_source_is_read_and_an_expanded_destination_refused():
    row, full = np.arange(5.0), np.zeros((3, 5))
    wide = np.broadcast_to(row, (3, 5))
    apply(wide, full)
    np.testing.assert_array_equal(full, wide)
    with pytest.raises(ValueError, match=r"several of its elements are one place in memory"):
        plan(describe(full).layout, describe(wide).layout)


def test_fields_of_records_have_strides_of_any_size():
    records = np.zeros(7, np.dtype([("a", "u1"), ("x", "<f4")]))
    records["x"] = np.arange(7)
    out = np.zeros(7, np.float32)
    apply(records["x"], out)
    np.testing.assert_array_equal(out, np.arange(7))


def test_a_misfit_states_both_sides():
    with pytest.raises(ValueError, match=r"float32\[4, 2\] \(32 bytes\).*int32\[4, 2\] \(32 bytes\)"):
        matched(packed("float32", 4, (4, 2)), packed("int32", 4, (4, 2)))
    with pytest.raises(ValueError, match=r"uint8\[31\]"):
        matched(packed("float32", 4, (4, 2)), packed("uint8", 1, (31,)))


def test_flat_bytes_stand_for_any_contiguous_array_of_their_size():
    values, flat = np.arange(8, dtype=np.float32).reshape(4, 2), np.zeros(32, np.uint8)
    apply(values, flat)
    assert flat.tobytes() == values.tobytes()
    back = np.zeros((4, 2), np.float32)
    apply(flat, back)
    np.testing.assert_array_equal(back, values)
    with pytest.raises(ValueError, match="flat contiguous uint8"):
        matched(describe(values.T).layout, describe(flat).layout)


def test_views_of_one_storage_are_one_block():
    torch = pytest.importorskip("torch")
    for block in (np.zeros((6, 8)), torch.zeros(6, 8)):
        spans = {(s.base, s.nbytes) for s in map(span_of, map(describe, (block, block[2:, 1:3], block.T)))}
        assert len(spans) == 1


@pytest.mark.parametrize("make", [bytearray, lambda n: memoryview(bytearray(n)), lambda n: np.zeros(n, np.uint8).data])
def test_bytes_like_objects_are_described_in_place(make):
    data = make(10)
    memory = describe(data)
    view_at(memory.address, 10)[3] = 9
    assert data[3] == 9 and memory.writable and str(memory.layout) == "uint8[10]"
    assert not describe(bytes(4)).writable


def test_what_has_no_memory_of_its_own_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="not int"):
        describe(3)
    with pytest.raises(TypeError, match="pointers"):
        describe(np.array([object()]))
    with pytest.raises(TypeError, match="sparse"):
        describe(torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match="meta"):
        describe(torch.zeros(3, device="meta"))
    with pytest.raises(ValueError, match="resolve_conj"):
        describe(torch.zeros(3, dtype=torch.complex64).conj())


def test_torch_and_numpy_name_their_types_alike():
    torch = pytest.importorskip("torch")
    for name in ("float32", "float64", "float16", "int8", "int64", "uint8", "bool", "complex64"):
        assert describe(np.zeros(2, name)).layout == describe(torch.zeros(2, dtype=getattr(torch, name))).layout
    assert describe(torch.zeros(2, dtype=torch.bfloat16)).layout.dtype == "bfloat16"
    assert describe(np.zeros(2, ">f4")).layout.dtype != "float32"
